// Command grpcproxy forwards every gRPC call from one address to another with the library mwitkow/grpc-proxy. Two such
// processes with TCP between are the simplest generic relay; the performance table compares edge-csi with it.
//
//	grpcproxy FROM TO      an address is /a/socket or host:port
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"github.com/mwitkow/grpc-proxy/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func run(from, to string) error {
	network := "tcp"
	if strings.HasPrefix(from, "/") {
		network = "unix"
		if err := os.Remove(from); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	listener, err := net.Listen(network, from)
	if err != nil {
		return err
	}
	if strings.HasPrefix(to, "/") {
		to = "unix://" + to
	}
	backend, err := grpc.NewClient(to, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	return proxy.NewProxy(backend).Serve(listener)
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: grpcproxy FROM TO")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "grpcproxy:", err)
		os.Exit(1)
	}
}

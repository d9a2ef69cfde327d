// Command mockdriver puts the CSI mock of Kubernetes' end-to-end tests behind a
// unix socket, so that a relay can be measured against a driver which the
// Kubernetes project wrote. It keeps its volumes in memory and mounts nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	endpoint := flag.String("endpoint", "", "path of the unix socket to serve on; must not exist yet")
	name := flag.String("drivername", "mock.csi.edge", "name that GetPluginInfo answers")
	attachLimit := flag.Int64("attach-limit", 20, "volumes that may be attached to the node at a time")
	secret := flag.String("secret", "", "value that must be among the secrets of every request that can have some; all are taken if it is empty")
	nodeAlone := flag.Bool("no-controller-expansion", false, "volumes grow on the node alone")
	flag.Parse()

	if err := serve(*endpoint, *secret, service.Config{
		DriverName:                 *name,
		AttachLimit:                *attachLimit,
		NodeExpansionRequired:      true,
		DisableControllerExpansion: *nodeAlone,
		PermissiveTargetPath:       true,
		IO:                         service.OSDirIO{},
	}); err != nil {
		fmt.Fprintln(os.Stderr, "mockdriver:", err)
		os.Exit(1)
	}
}

// serve runs the mock until SIGTERM or SIGINT.
func serve(endpoint, secret string, config service.Config) error {
	if endpoint == "" {
		return fmt.Errorf("--endpoint is missing")
	}
	stopped, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()

	listener, err := net.Listen("unix", endpoint)
	if err != nil {
		return err
	}
	mock := service.New(config)
	servers := driver.NewCSIDriver(&driver.CSIDriverServers{Identity: mock, Controller: mock, Node: mock})
	var interceptor grpc.UnaryServerInterceptor // the mock's own one, which prints every request
	if secret != "" {
		interceptor = demand(secret)
	}
	if err := servers.Start(listener, interceptor); err != nil {
		return err
	}
	<-stopped.Done()
	servers.Stop()
	return nil
}

// demand refuses requests with a secret missing, and prints which calls had it.
func demand(secret string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		guarded, ok := request.(interface{ GetSecrets() map[string]string })
		if !ok {
			return handler(ctx, request)
		}
		for _, value := range guarded.GetSecrets() {
			if value == secret {
				fmt.Println("with the secret:", info.FullMethod)
				return handler(ctx, request)
			}
		}
		fmt.Println("without the secret:", info.FullMethod)
		return nil, status.Error(codes.Unauthenticated, "the secret is missing")
	}
}

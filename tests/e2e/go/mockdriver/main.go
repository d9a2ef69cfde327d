// Command mockdriver serves the CSI mock of Kubernetes' end-to-end tests on a unix
// socket, so that the relay is tested with a driver of the Kubernetes project. The
// mock keeps its volumes in memory and mounts nothing.
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
	secret := flag.String("secret", "", "value that must be among the secrets of every request with a field for secrets; if empty, all requests are accepted")
	nodeAlone := flag.Bool("no-controller-expansion", false, "expand volumes only on the node")
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
	var interceptor grpc.UnaryServerInterceptor // nil: the mock's own interceptor, which prints every request
	if secret != "" {
		interceptor = requireSecret(secret)
	}
	if err := servers.Start(listener, interceptor); err != nil {
		return err
	}
	<-stopped.Done()
	servers.Stop()
	return nil
}

// requireSecret refuses a request without the secret if the request has a field for
// secrets, and prints for each such call whether it had the secret.
func requireSecret(secret string) grpc.UnaryServerInterceptor {
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

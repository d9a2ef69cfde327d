// Command exampleplugin is kubelet's example of a plugin, as a CSI driver. The
// command registers as kubelet's tests do, and serves the CSI mock of Kubernetes'
// end-to-end tests at the registered endpoint.
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
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/pluginwatcher"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	registration := flag.String("registration", "", "path of the unix socket to register on; must not exist yet")
	endpoint := flag.String("endpoint", "", "path of the unix socket to serve CSI on; must not exist yet")
	name := flag.String("drivername", "mock.csi.edge", "name of the driver")
	flag.Parse()

	if err := serve(*registration, *endpoint, *name); err != nil {
		fmt.Fprintln(os.Stderr, "exampleplugin:", err)
		os.Exit(1)
	}
}

// plugin responds as kubelet's example does, but prints each notification. The
// example would send the notification to a test, and wait until the test reads it.
type plugin struct {
	registerapi.RegistrationServer
}

func (plugin) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		fmt.Println("notified: registered")
	} else {
		fmt.Println("notified: not registered:", status.Error)
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// serve runs both services until SIGTERM or SIGINT.
func serve(registration, endpoint, name string) error {
	if registration == "" || endpoint == "" {
		return fmt.Errorf("--registration or --endpoint is missing")
	}
	stopped, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()

	csi, err := net.Listen("unix", endpoint)
	if err != nil {
		return err
	}
	mock := service.New(service.Config{DriverName: name, AttachLimit: 20, PermissiveTargetPath: true, IO: service.OSDirIO{}})
	servers := driver.NewCSIDriver(&driver.CSIDriverServers{Identity: mock, Controller: mock, Node: mock})
	if err := servers.Start(csi, nil); err != nil {
		return err
	}
	defer servers.Stop()

	listener, err := net.Listen("unix", registration)
	if err != nil {
		return err
	}
	example := pluginwatcher.NewTestExamplePlugin(name, registerapi.CSIPlugin, endpoint, "1.0.0")
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, plugin{example})
	go func() {
		<-stopped.Done()
		server.GracefulStop()
	}()
	return server.Serve(listener)
}

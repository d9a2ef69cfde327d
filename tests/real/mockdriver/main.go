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

	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	endpoint := flag.String("endpoint", "", "path of the unix socket to serve on; must not exist yet")
	name := flag.String("drivername", "mock.csi.edge", "name that GetPluginInfo answers")
	attachLimit := flag.Int64("attach-limit", 20, "volumes that may be attached to the node at a time")
	flag.Parse()

	if err := serve(*endpoint, service.Config{
		DriverName:            *name,
		AttachLimit:           *attachLimit,
		NodeExpansionRequired: true,
		PermissiveTargetPath:  true,
		IO:                    service.OSDirIO{},
	}); err != nil {
		fmt.Fprintln(os.Stderr, "mockdriver:", err)
		os.Exit(1)
	}
}

// serve runs the mock until SIGTERM or SIGINT.
func serve(endpoint string, config service.Config) error {
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
	if err := servers.Start(listener, nil); err != nil {
		return err
	}
	<-stopped.Done()
	servers.Stop()
	return nil
}

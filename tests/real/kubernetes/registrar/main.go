// Command registrar tells kubelet of a CSI driver: it asks the driver at --endpoint
// for its name and serves NAME-reg.sock in --registry, until it is ended. It stands
// for node-driver-registrar, which is published as an image and not as a module.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// patience is how long a driver may take to say its name.
const patience = 10 * time.Second

func main() {
	endpoint := flag.String("endpoint", "", "path of the driver's unix socket, as kubelet sees it")
	registry := flag.String("registry", "", "kubelet's folder plugins_registry")
	flag.Parse()
	if err := run(*endpoint, *registry); err != nil {
		fmt.Fprintln(os.Stderr, "registrar:", err)
		os.Exit(1)
	}
}

func run(endpoint, registry string) error {
	name, err := driverName(endpoint)
	if err != nil {
		return fmt.Errorf("ask %s for its name: %w", endpoint, err)
	}
	path := filepath.Join(registry, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &plugin{name: name, endpoint: endpoint})
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-end
		server.Stop()
	}()
	return server.Serve(listener)
}

func driverName(endpoint string) (string, error) {
	connection, err := grpc.NewClient("unix://"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	return info.GetName(), err
}

type plugin struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              p.name,
		Endpoint:          p.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (p *plugin) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		fmt.Println("registered")
	} else {
		fmt.Println("refused:", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

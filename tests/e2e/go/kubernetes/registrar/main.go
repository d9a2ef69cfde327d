// Command registrar registers a CSI driver with kubelet: it gets the driver's name
// by GetPluginInfo, and serves NAME-reg.sock in kubelet's folder until SIGTERM or
// SIGINT. The command replaces node-driver-registrar, which is published as an
// image and not as a module, and has the options of that sidecar.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
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

type options struct {
	driver, kubeletPath, registry, health string
	patience                              time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.driver, "csi-address", "", "path of the driver's unix socket")
	flag.StringVar(&o.kubeletPath, "kubelet-registration-path", "", "path of the driver's unix socket as kubelet sees it")
	flag.StringVar(&o.registry, "plugin-registration-path", "/registration", "kubelet's folder plugins_registry")
	flag.StringVar(&o.health, "http-endpoint", "", "address to serve /healthz on, if any")
	flag.DurationVar(&o.patience, "timeout", 10*time.Second, "how long the driver may take to answer GetPluginInfo")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "registrar:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	name, err := driverName(o.driver, o.patience)
	if err != nil {
		return fmt.Errorf("cannot get the name of the driver at %s: %w", o.driver, err)
	}
	path := filepath.Join(o.registry, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &plugin{name: name, endpoint: o.kubeletPath})
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-end
		server.Stop()
	}()
	if o.health != "" {
		go serveHealth(o.health, path)
	}
	return server.Serve(listener)
}

// serveHealth reports success while the registration socket exists: kubelet, or a
// process that cleans up kubelet's folder, may remove the socket.
func serveHealth(address, socket string) {
	http.HandleFunc("/healthz", func(answer http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(socket); err != nil {
			http.Error(answer, err.Error(), http.StatusInternalServerError)
		}
	})
	fmt.Fprintln(os.Stderr, "registrar:", http.ListenAndServe(address, nil))
	os.Exit(1)
}

func driverName(endpoint string, patience time.Duration) (string, error) {
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

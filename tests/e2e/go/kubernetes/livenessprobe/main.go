// Command livenessprobe calls Probe of a CSI driver for each request to /healthz.
// The command replaces the sidecar of the same name, which is published as an
// image and not as a module, and has the options of that sidecar.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	driver := flag.String("csi-address", "", "path of the driver's unix socket")
	address := flag.String("http-endpoint", "", "address to serve /healthz on")
	patience := flag.Duration("probe-timeout", time.Second, "how long the driver may take to answer")
	flag.Parse()
	if err := serve(*driver, *address, *patience); err != nil {
		fmt.Fprintln(os.Stderr, "livenessprobe:", err)
		os.Exit(1)
	}
}

func serve(driver, address string, patience time.Duration) error {
	connection, err := grpc.NewClient("unix://"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	identity := csi.NewIdentityClient(connection)
	http.HandleFunc("/healthz", func(answer http.ResponseWriter, request *http.Request) {
		ctx, cancel := context.WithTimeout(request.Context(), patience)
		defer cancel()
		// A response without the field ready means that the driver is ready.
		said, err := identity.Probe(ctx, &csi.ProbeRequest{})
		switch {
		case err != nil:
			http.Error(answer, err.Error(), http.StatusInternalServerError)
		case said.Ready != nil && !said.Ready.Value:
			http.Error(answer, "the driver is not ready", http.StatusInternalServerError)
		}
	})
	return http.ListenAndServe(address, nil)
}

package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Plane has the responses of a socket in one round of calls: the calls that a
// sidecar makes at its start, and one call that only the driver can answer.
type Plane struct {
	// The readiness that Probe reports; false if Probe fails.
	Ready bool `json:"ready"`
	// Name and capabilities as hexadecimal bytes, or the errors in their place.
	Facts string `json:"facts"`
	// Name of the gRPC code of the call that only the driver can answer.
	Code string `json:"code"`
	// Duration of that call, in microseconds.
	Micros int64 `json:"micros"`
}

// watchPlane repeats the calls at an interval, and prints a line of JSON for each
// round. The process exits with an error if the socket is closed.
func watchPlane(endpoint, name string, timeout, length, every time.Duration) error {
	client, err := connect(endpoint, name, timeout)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(os.Stdout)
	end := time.Now().Add(length)
	for {
		if err := lines.Encode(client.plane()); err != nil {
			return err
		}
		if time.Now().Add(every).After(end) {
			return nil
		}
		time.Sleep(every)
	}
}

func (a *driverClient) plane() *Plane {
	ctx, cancel := context.WithTimeout(context.Background(), a.timeout)
	defer cancel()
	identity, controller := csi.NewIdentityClient(a.conn), csi.NewControllerClient(a.conn)
	probe, err := identity.Probe(ctx, &csi.ProbeRequest{})
	// A response without the field ready means that the driver is ready.
	plane := &Plane{Ready: err == nil && (probe.GetReady() == nil || probe.GetReady().GetValue())}
	info, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	plane.Facts += fact(info, err)
	services, err := identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	plane.Facts += fact(services, err)
	capabilities, err := controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	plane.Facts += fact(capabilities, err)
	begun := time.Now()
	plane.Code = a.client("code-0").Code
	plane.Micros = time.Since(begun).Microseconds()
	return plane
}

func fact(message proto.Message, err error) string {
	if err != nil {
		return fmt.Sprintf("[%s]", status.Code(err))
	}
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return fmt.Sprintf("[%s]", err)
	}
	return "[" + hex.EncodeToString(bytes) + "]"
}

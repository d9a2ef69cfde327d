package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/net/http2"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// mannerKey is the parameter of a request that selects how the driver answers: one of
// the manners below.
const mannerKey = "manner"

const (
	mannerCode      = "code-"      // with a number: this status
	mannerPlain     = "plain-"     // with a number: this status without details
	mannerHold      = "hold"       // never an answer
	mannerDie       = "die"        // the process kills itself
	mannerCut       = "cut"        // the connection ends in the midst of the answer
	mannerReset     = "reset"      // the stream is reset in the midst of the answer
	mannerOversize  = "oversize"   // an answer larger than anything a relay carries
	mannerNotGRPC   = "not-grpc"   // a page of text
	mannerHTTPError = "http-503"   // an HTTP status
	mannerNoStatus  = "no-status"  // the stream ends without a status
	mannerBadStatus = "bad-status" // a status that is not a number
	mannerGarbage   = "garbage"    // bytes that are not a message
)

// oversize is in bytes, and above the default message limits of all parts of the relay.
const oversize = 96 << 20

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	name string
}

type connKey struct{}

// serveDriver serves until SIGTERM. The server is net/http's, since grpc-go cannot
// send malformed responses.
func serveDriver(endpoint, name string) error {
	listener, err := net.Listen("unix", endpoint)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	own := &driver{name: name}
	csi.RegisterIdentityServer(server, own)
	csi.RegisterControllerServer(server, own)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(server, w, r) })
	transport := &http2.Server{}
	stopped, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	go func() {
		<-stopped.Done()
		_ = listener.Close()
	}()
	for {
		conn, err := listener.Accept()
		if stopped.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		ctx := context.WithValue(context.Background(), connKey{}, conn)
		go transport.ServeConn(conn, &http2.ServeConnOpts{Context: ctx, Handler: handler})
	}
}

// handle sends the malformed responses itself, and passes requests for any other
// response to grpc-go.
func handle(server *grpc.Server, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	manner := mannerOf(r.URL.Path, body)
	if manner != "" {
		fmt.Fprintln(os.Stderr, "called:", r.URL.Path, manner)
	}
	switch manner {
	case mannerDie:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case mannerHold:
		select {}
	case mannerCut:
		half(w)
		_ = r.Context().Value(connKey{}).(net.Conn).Close()
	case mannerReset:
		half(w)
		panic(http.ErrAbortHandler)
	case mannerNotGRPC:
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html>It works!</html>")
	case mannerHTTPError:
		w.WriteHeader(http.StatusServiceUnavailable)
	case mannerNoStatus:
		w.Header().Set("Content-Type", "application/grpc")
		w.WriteHeader(http.StatusOK)
	case mannerBadStatus:
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.WriteHeader(http.StatusOK)
		w.Header().Set("Grpc-Status", "fine")
	case mannerGarbage:
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte{7, 0xff, 0xff, 0xff, 0xff, 1, 2, 3})
		w.Header().Set("Grpc-Status", "0")
	default:
		server.ServeHTTP(w, r)
	}
}

// half sends the beginning of a response, without its end.
func half(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/grpc")
	w.WriteHeader(http.StatusOK)
	prefix := make([]byte, 5)
	binary.BigEndian.PutUint32(prefix[1:], 100)
	_, _ = w.Write(append(prefix, 10, 90, 10, 3))
	w.(http.Flusher).Flush()
}

func mannerOf(path string, body []byte) string {
	if len(body) < 5 {
		return ""
	}
	switch path {
	case csi.Controller_CreateVolume_FullMethodName:
		request := &csi.CreateVolumeRequest{}
		if proto.Unmarshal(body[5:], request) == nil {
			return request.GetParameters()[mannerKey]
		}
	case csi.Controller_ControllerPublishVolume_FullMethodName:
		request := &csi.ControllerPublishVolumeRequest{}
		if proto.Unmarshal(body[5:], request) == nil {
			return request.GetVolumeContext()[mannerKey]
		}
	}
	return ""
}

// answer returns the error of a manner that selects a status, and else nil.
func answer(manner string) error {
	for _, prefix := range []string{mannerCode, mannerPlain} {
		number, found := strings.CutPrefix(manner, prefix)
		if !found {
			continue
		}
		code, err := strconv.Atoi(number)
		if err != nil || code == int(codes.OK) {
			return err
		}
		return status.FromProto(statusOf(prefix, code)).Err()
	}
	return nil
}

// statusOf returns a status with a long message, which has several scripts and
// characters that must be escaped, and with details of unknown types. A client of
// grpc-go reads the message from grpc-status-details-bin if there are details, and
// else from grpc-message, so the tests need both forms.
func statusOf(prefix string, code int) *spb.Status {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	message := fmt.Sprintf("code %d: größer als 100 %% — 容量不足 🐘\n\t%%41 ", code)
	converted := &spb.Status{Code: int32(code), Message: message + strings.Repeat("容量 ", 1000) + "end"}
	if prefix == mannerCode {
		converted.Details = []*anypb.Any{
			{TypeUrl: "example.invalid/unknown.Type", Value: every},
			{TypeUrl: "example.invalid/empty"},
		}
	}
	return converted
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: service}},
	}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, capability := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	} {
		rpc := &csi.ControllerServiceCapability_RPC{Type: capability}
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc},
		})
	}
	return response, nil
}

func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	manner := r.GetParameters()[mannerKey]
	if err := answer(manner); err != nil {
		return nil, err
	}
	volume := &csi.Volume{VolumeId: r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}
	if manner == mannerOversize {
		volume.VolumeContext = map[string]string{"large": strings.Repeat("x", oversize)}
	}
	return &csi.CreateVolumeResponse{Volume: volume}, nil
}

func (d *driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	manner := r.GetVolumeContext()[mannerKey]
	if err := answer(manner); err != nil {
		return nil, err
	}
	published := map[string]string{"device": r.GetVolumeId()}
	if manner == mannerOversize {
		published["large"] = strings.Repeat("x", oversize)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: published}, nil
}

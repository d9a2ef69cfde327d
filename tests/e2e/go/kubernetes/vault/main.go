// Command vault is a CSI driver that passes secrets to pods. A volume is a tmpfs
// with two files: one has the pod's context, the other has the tokens of the pod's
// service account. Each NodePublishVolume replaces both files, and makes them
// readable only by root. The driver has no controller service.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// tokensKey is the key of the tokens in the volume context that kubelet sends.
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

func main() {
	endpoint := flag.String("endpoint", "", "path of the unix socket to serve on; must not exist yet")
	name := flag.String("drivername", "", "name that GetPluginInfo answers")
	node := flag.String("nodeid", "", "name of the node")
	flag.Parse()
	if err := serve(*endpoint, &vault{name: *name, node: *node, staged: map[string]map[string]string{}, times: map[string]int{}}); err != nil {
		fmt.Fprintln(os.Stderr, "vault:", err)
		os.Exit(1)
	}
}

func serve(endpoint string, driver *vault) error {
	listener, err := net.Listen("unix", endpoint)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, driver)
	csi.RegisterNodeServer(server, driver)
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-end
		server.Stop()
	}()
	return server.Serve(listener)
}

type vault struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	name, node string

	// Serializes the calls.
	mutex sync.Mutex
	// The secrets that each volume was staged with.
	staged map[string]map[string]string
	// The number of NodePublishVolume calls for each target.
	times map[string]int
}

// podContext is the content of the file "context".
type podContext struct {
	Staged    map[string]string `json:"staged"`
	Secrets   map[string]string `json:"secrets"`
	Context   map[string]string `json:"context"`
	Staging   string            `json:"staging"`
	Published int               `json:"published"`
}

func (v *vault) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: v.name, VendorVersion: "1"}, nil
}

func (v *vault) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (v *vault) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (v *vault) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: v.node}, nil
}

func (v *vault) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	stage := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{
		{Type: &csi.NodeServiceCapability_Rpc{Rpc: stage}},
	}}, nil
}

func (v *vault) NodeStageVolume(_ context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	if _, ok := v.staged[request.VolumeId]; !ok {
		if err := mountTmpfs(request.StagingTargetPath); err != nil {
			return nil, err
		}
	}
	v.staged[request.VolumeId] = request.Secrets
	return &csi.NodeStageVolumeResponse{}, nil
}

func (v *vault) NodeUnstageVolume(_ context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	delete(v.staged, request.VolumeId)
	return &csi.NodeUnstageVolumeResponse{}, unmount(request.StagingTargetPath)
}

func (v *vault) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	target := request.TargetPath
	if v.times[target] == 0 {
		if err := v.place(request); err != nil {
			return nil, err
		}
	}
	v.times[target]++
	tokens := request.VolumeContext[tokensKey]
	delete(request.VolumeContext, tokensKey)
	text, err := json.Marshal(podContext{
		Staged:    v.staged[request.VolumeId],
		Secrets:   request.Secrets,
		Context:   request.VolumeContext,
		Staging:   request.StagingTargetPath,
		Published: v.times[target],
	})
	if err == nil {
		err = errors.Join(put(target, "tokens", []byte(tokens)), put(target, "context", text))
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (v *vault) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	delete(v.times, request.TargetPath)
	if err := unmount(request.TargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(request.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// place mounts the volume at its target: the staged tmpfs, or a new one if the
// volume was not staged.
func (v *vault) place(request *csi.NodePublishVolumeRequest) error {
	if _, ok := v.staged[request.VolumeId]; !ok {
		return mountTmpfs(request.TargetPath)
	}
	err := os.MkdirAll(request.TargetPath, 0o750)
	if err == nil {
		err = syscall.Mount(request.StagingTargetPath, request.TargetPath, "", syscall.MS_BIND, "")
	}
	if err != nil {
		return status.Errorf(codes.Internal, "%s: %v", request.TargetPath, err)
	}
	return nil
}

// put replaces a file atomically, so that a reader gets the old or the new content.
func put(folder, name string, text []byte) error {
	next := filepath.Join(folder, "."+name)
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(folder, name))
}

// mountTmpfs mounts a tmpfs at a path, and creates the directory if it is missing.
func mountTmpfs(place string) error {
	err := os.MkdirAll(place, 0o750)
	if err == nil {
		err = syscall.Mount("vault", place, "tmpfs", 0, "size=1m,mode=0750")
	}
	if err != nil {
		return status.Errorf(codes.Internal, "%s: %v", place, err)
	}
	return nil
}

// unmount unmounts a path. A path without a mount is not an error.
func unmount(place string) error {
	err := syscall.Unmount(place, 0)
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return status.Errorf(codes.Internal, "%s: %v", place, err)
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"github.com/kubernetes-csi/external-attacher/v4/pkg/attacher"
	provisioner "github.com/kubernetes-csi/external-provisioner/v6/pkg/controller"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// The clients.
const (
	logicClient      = "client"
	logicProvisioner = "provisioner"
	logicAttacher    = "attacher"
)

// Decision is a client's interpretation of the answer.
type Decision struct {
	// Name of the gRPC code.
	Code string `json:"code"`
	// Whether the client assumes that no operation is running any more. Always
	// false for the plain client of grpc-go, which does not interpret errors.
	Final bool `json:"final"`
	// The sidecar's name for the state after the call; empty for the plain client.
	State   string `json:"state"`
	Message string `json:"message"`
	Details []byte `json:"-"`
	Answer  string `json:"-"`
}

// driverClient is a connection with the options of the sidecars: the process exits
// when the socket is closed.
type driverClient struct {
	conn    *grpc.ClientConn
	name    string
	timeout time.Duration
}

func connect(endpoint, name string, timeout time.Duration) (*driverClient, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	manager := metrics.NewCSIMetricsManager(name)
	conn, err := connection.Connect(ctx, endpoint, manager,
		connection.OnConnectionLoss(connection.ExitOnConnectionLoss()))
	if err != nil {
		return nil, err
	}
	return &driverClient{conn: conn, name: name, timeout: timeout}, nil
}

// askOnce makes one call as this client, and prints the decision as a line of JSON.
func askOnce(endpoint, name, logic, manner string, timeout time.Duration) error {
	client, err := connect(endpoint, name, timeout)
	if err != nil {
		return err
	}
	decision, err := client.ask(logic, manner)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(decision)
}

func (a *driverClient) ask(logic, manner string) (*Decision, error) {
	switch logic {
	case logicClient:
		return a.client(manner), nil
	case logicProvisioner:
		return a.provisioner(manner), nil
	case logicAttacher:
		return a.attacher(manner), nil
	default:
		return nil, fmt.Errorf("unknown client %q; expected client, provisioner or attacher", logic)
	}
}

// unique returns a name that was not used before, so that no two calls are for the
// same volume.
func unique() string {
	return fmt.Sprintf("pvc-%d-%d", os.Getpid(), time.Now().UnixNano())
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

func decisionOf(err error) *Decision {
	converted := status.Convert(err)
	decision := &Decision{Code: converted.Code().String(), Message: converted.Message()}
	for _, detail := range converted.Proto().GetDetails() {
		decision.Details = append(decision.Details, detail.GetTypeUrl()...)
		decision.Details = append(decision.Details, 0)
		decision.Details = append(decision.Details, detail.GetValue()...)
	}
	return decision
}

// client calls CreateVolume as a plain client of grpc-go.
func (a *driverClient) client(manner string) *Decision {
	ctx, cancel := context.WithTimeout(context.Background(), a.timeout)
	defer cancel()
	response, err := csi.NewControllerClient(a.conn).CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name:               "client-" + unique(),
		CapacityRange:      &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{capability()},
		Parameters:         map[string]string{mannerKey: manner},
	}, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	decision := decisionOf(err)
	decision.Answer = fmt.Sprint(response.GetVolume().GetCapacityBytes())
	return decision
}

// provisioner provisions a claim with external-provisioner's code.
func (a *driverClient) provisioner(manner string) *Decision {
	client := fake.NewClientset()
	sidecar := provisioner.NewCSIProvisioner(client, a.timeout, "identity", "pvc", -1, a.conn, nil, a.name,
		rpc.PluginCapabilitySet{csi.PluginCapability_Service_CONTROLLER_SERVICE: true},
		rpc.ControllerCapabilitySet{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME: true},
		"", false, false, nil, nil, nil, nil, nil, nil, nil, false, "", nil, false, false, nil)
	reclaim := v1.PersistentVolumeReclaimDelete
	volume, state, err := sidecar.Provision(context.Background(), controller.ProvisionOptions{
		StorageClass: &storagev1.StorageClass{
			ObjectMeta:    metav1.ObjectMeta{Name: "class"},
			Provisioner:   a.name,
			Parameters:    map[string]string{mannerKey: manner},
			ReclaimPolicy: &reclaim,
		},
		PVName: "volume",
		PVC: &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Name:        "claim",
				Namespace:   "default",
				UID:         types.UID(unique()),
				Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": a.name},
			},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources: v1.VolumeResourceRequirements{
					Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")},
				},
			},
		},
	})
	decision := decisionOf(err)
	decision.State = string(state)
	decision.Final = state != controller.ProvisioningInBackground
	decision.Answer = fmt.Sprint(volume != nil)
	return decision
}

// attacher attaches a volume with external-attacher's code.
func (a *driverClient) attacher(manner string) *Decision {
	ctx, cancel := context.WithTimeout(context.Background(), a.timeout)
	defer cancel()
	published, detached, err := attacher.NewAttacher(a.conn).Attach(ctx, "attacher-"+unique(), false, "edge-1",
		capability(), map[string]string{mannerKey: manner}, nil)
	decision := decisionOf(err)
	decision.Final = detached
	decision.State = fmt.Sprintf("detached: %t", detached)
	decision.Answer = fmt.Sprint(len(published))
	return decision
}

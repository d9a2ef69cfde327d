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

// Who asks.
const (
	logicClient      = "client"
	logicProvisioner = "provisioner"
	logicAttacher    = "attacher"
)

// Verdict is what somebody who asked makes of the answer.
type Verdict struct {
	// Name of the gRPC code.
	Code string `json:"code"`
	// Whether whoever asked takes it that nothing is running any more.
	// grpc-go by itself has no opinion.
	Final bool `json:"final"`
	// In the sidecar's own words, if it has any.
	State   string `json:"state"`
	Message string `json:"message"`
	Details []byte `json:"-"`
	Answer  string `json:"-"`
}

// asker is a connection made as the sidecars make it: it ends the process if
// the socket is closed.
type asker struct {
	conn    *grpc.ClientConn
	name    string
	timeout time.Duration
}

func connect(endpoint, name string, timeout time.Duration) (*asker, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	manager := metrics.NewCSIMetricsManager(name)
	conn, err := connection.Connect(ctx, endpoint, manager,
		connection.OnConnectionLoss(connection.ExitOnConnectionLoss()))
	if err != nil {
		return nil, err
	}
	return &asker{conn: conn, name: name, timeout: timeout}, nil
}

// askOnce asks and prints the verdict as a line of JSON.
func askOnce(endpoint, name, logic, manner string, timeout time.Duration) error {
	asker, err := connect(endpoint, name, timeout)
	if err != nil {
		return err
	}
	verdict, err := asker.ask(logic, manner)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(verdict)
}

func (a *asker) ask(logic, manner string) (*Verdict, error) {
	switch logic {
	case logicClient:
		return a.client(manner), nil
	case logicProvisioner:
		return a.provisioner(manner), nil
	case logicAttacher:
		return a.attacher(manner), nil
	default:
		return nil, fmt.Errorf("%s is nobody who asks", logic)
	}
}

// unique is a name that nobody has asked for, so that no two calls have to do
// with each other.
func unique() string {
	return fmt.Sprintf("pvc-%d-%d", os.Getpid(), time.Now().UnixNano())
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

func verdictOf(err error) *Verdict {
	told := status.Convert(err)
	verdict := &Verdict{Code: told.Code().String(), Message: told.Message()}
	for _, detail := range told.Proto().GetDetails() {
		verdict.Details = append(verdict.Details, detail.GetTypeUrl()...)
		verdict.Details = append(verdict.Details, 0)
		verdict.Details = append(verdict.Details, detail.GetValue()...)
	}
	return verdict
}

// client is a plain client of grpc-go.
func (a *asker) client(manner string) *Verdict {
	ctx, cancel := context.WithTimeout(context.Background(), a.timeout)
	defer cancel()
	response, err := csi.NewControllerClient(a.conn).CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name:               "client-" + unique(),
		CapacityRange:      &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{capability()},
		Parameters:         map[string]string{mannerKey: manner},
	}, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	verdict := verdictOf(err)
	verdict.Answer = fmt.Sprint(response.GetVolume().GetCapacityBytes())
	return verdict
}

// provisioner is external-provisioner with a claim.
func (a *asker) provisioner(manner string) *Verdict {
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
	verdict := verdictOf(err)
	verdict.State = string(state)
	verdict.Final = state != controller.ProvisioningInBackground
	verdict.Answer = fmt.Sprint(volume != nil)
	return verdict
}

// attacher is external-attacher with a volume.
func (a *asker) attacher(manner string) *Verdict {
	ctx, cancel := context.WithTimeout(context.Background(), a.timeout)
	defer cancel()
	published, detached, err := attacher.NewAttacher(a.conn).Attach(ctx, "attacher-"+unique(), false, "edge-1",
		capability(), map[string]string{mannerKey: manner}, nil)
	verdict := verdictOf(err)
	verdict.Final = detached
	verdict.State = fmt.Sprintf("detached: %t", detached)
	verdict.Answer = fmt.Sprint(len(published))
	return verdict
}

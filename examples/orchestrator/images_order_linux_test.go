package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// envImages holds the order of a process that does something to one image, in place of running tests.
const envImages = "ORCHESTRATOR_IMAGES"

// What such a process does.
const (
	doProvision = "provision"
	doExpand    = "expand"
	doDelete    = "delete"
	// A snapshot of the volume is made, and deleted.
	doSnapshot       = "snapshot"
	doDeleteSnapshot = "delete snapshot"
)

// imageNode is where the plugin's images and mounts are.
type imageNode struct{ Root, Images string }

// imageOrder is all that such a process knows: it has a new value of the plugin, as after a restart.
type imageOrder struct {
	Node        imageNode
	Do          string
	Name        string
	FSType      string // none: a volume that is mapped
	Size        int64
	Preallocate bool
	Source      *imageOrder // by which the volume was made that is to be copied
	Staged      bool
}

// handleImages is the main function of such a process.
func handleImages(text string) int {
	var order imageOrder
	err := json.Unmarshal([]byte(text), &order)
	if err == nil {
		err = order.carryOut(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		return 1
	}
	return 0
}

func (o imageOrder) carryOut(ctx context.Context) error {
	plugin, err := o.Node.plugin(ctx)
	if err != nil {
		return err
	}
	switch o.Do {
	case doProvision:
		provisioner, err := plugin.NewProvisioner(o.options())
		if err != nil {
			return err
		}
		_, err = provisioner.Provision(ctx, nil, nil)
		return err
	case doExpand:
		return o.expand(ctx, plugin)
	case doSnapshot:
		_, err := plugin.CreateSnapshot(ctx, volume.SnapshotOptions{Name: snapshotName, Source: o.spec()})
		return err
	case doDeleteSnapshot:
		return plugin.DeleteSnapshot(ctx, snapshotName)
	}
	deleter, err := plugin.NewDeleter(o.spec())
	if err != nil {
		return err
	}
	return deleter.Delete(ctx)
}

func (n imageNode) plugin(ctx context.Context) (*loopblock.Plugin, error) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: n.Root, NodeName: "node"})
	if err != nil {
		return nil, err
	}
	plugin := loopblock.New(loopblock.Options{BaseDir: n.Images})
	return plugin, plugin.Init(ctx, host)
}

// expand is what the control plane does and, for a volume that is staged, what the node does then.
func (o imageOrder) expand(ctx context.Context, plugin *loopblock.Plugin) error {
	size := *resource.NewQuantity(o.Size, resource.BinarySI)
	if _, err := plugin.ExpandVolumeDevice(ctx, o.spec(), size, resource.Quantity{}); err != nil || !o.Staged {
		return err
	}
	_, err := plugin.NodeExpand(ctx, volume.NodeResizeOptions{
		VolumeSpec: o.spec(), NewSize: size, DeviceStagePath: o.Node.staging(o.Name),
	})
	if errors.Is(err, volume.ErrInUse) {
		return nil // It grows when it is staged next.
	}
	return err
}

func (o imageOrder) mode() *v1.PersistentVolumeMode {
	mode := v1.PersistentVolumeFilesystem
	if o.FSType == "" {
		mode = v1.PersistentVolumeBlock
	}
	return &mode
}

func (o imageOrder) requests() v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(o.Size, resource.BinarySI)}
}

// spec is the volume that is there when the order to provision it was carried out.
func (o imageOrder) spec() *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: o.requests(), VolumeMode: o.mode(), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: loopblock.Driver, VolumeHandle: o.Name, FSType: o.FSType,
			}},
		},
	}, false)
}

func (o imageOrder) options() volume.VolumeOptions {
	options := volume.VolumeOptions{
		PVName: o.Name, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
		Parameters: map[string]string{loopblock.ParameterPreallocate: fmt.Sprint(o.Preallocate)},
		PVC: &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: o.Name},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, VolumeMode: o.mode(),
				Resources: v1.VolumeResourceRequirements{Requests: o.requests()},
			},
		},
	}
	if o.FSType != "" {
		options.Parameters[volume.VolumeParameterFSType] = o.FSType
	}
	if o.Source != nil {
		options.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: o.Source.Name}
		options.Source = o.Source.spec().PersistentVolume
	}
	return options
}

func (n imageNode) image(name string) string { return filepath.Join(n.Images, name+".img") }

// staging is where the plugin stages a volume.
func (n imageNode) staging(name string) string {
	return filepath.Join(n.Root, "plugins", loopblock.Name, "mounts", name)
}

// stage attaches a volume and mounts it, and returns its device.
func (o imageOrder) stage(ctx context.Context) (string, error) {
	plugin, err := o.Node.plugin(ctx)
	if err != nil {
		return "", err
	}
	attacher, err := plugin.NewAttacher()
	if err != nil {
		return "", err
	}
	device, err := attacher.Attach(ctx, o.spec(), "node")
	if err != nil || o.FSType == "" {
		return device, err
	}
	return device, waitReporting(func() error {
		return attacher.MountDevice(ctx, o.spec(), device, o.Node.staging(o.Name), volume.DeviceMounterArgs{})
	})
}

// release undoes stage.
func (o imageOrder) release(ctx context.Context) error {
	return waitReporting(func() error { return o.tryRelease(ctx) })
}

// waitReporting repeats do for a while, as long as it fails because another process has a file open or locked. Processes of
// other tests do for a moment when they are started, and so do those that were killed, until they have ended.
func waitReporting(do func() error) error {
	end := time.Now().Add(patience)
	for {
		err := do()
		busy := errors.Is(err, unix.EBUSY) || errors.Is(err, volume.ErrInUse) || errors.Is(err, errHeld)
		if !busy || time.Now().After(end) {
			return err
		}
		<-time.After(5 * time.Millisecond)
	}
}

// errHeld says that a process that was killed still holds something.
var errHeld = errors.New("still held")

func (o imageOrder) tryRelease(ctx context.Context) error {
	plugin, err := o.Node.plugin(ctx)
	if err != nil {
		return err
	}
	unmounter, err := plugin.NewDeviceUnmounter()
	if err != nil {
		return err
	}
	if err := unmounter.UnmountDevice(ctx, o.Node.staging(o.Name)); err != nil {
		return err
	}
	detacher, err := plugin.NewDetacher()
	if err != nil {
		return err
	}
	return detacher.Detach(ctx, o.Name, "node")
}

package dockerserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// namespace is where the claims of volumes are, in a store of this process alone. outerName is the volume's name in its pod.
const (
	namespace = "docker"
	outerName = "volume"
)

// node makes volumes available on this machine: each is the one volume of the one pod that stands for all its uses.
type node struct {
	manager  *volumemanager.Manager
	objects  *store.Memory
	plugins  *volume.VolumePluginMgr
	failures *failures
}

func newObjects() *store.Memory { return store.NewMemory(store.MemoryOptions{}) }

func newNode(plugins *volume.VolumePluginMgr, o Options, runtimeDir, stateDir string) (*node, error) {
	objects, failures := newObjects(), new(failures)
	manager, err := volumemanager.New(plugins, volumemanager.Options{
		Store: objects, Mounter: o.Mounter, DeviceUse: loop.DeviceUse{}, Logger: o.Logger,
		RuntimeDir: runtimeDir, StateDir: stateDir, Observer: failures,
	})
	if err != nil {
		return nil, err
	}
	return &node{manager: manager, objects: objects, plugins: plugins, failures: failures}, nil
}

// know puts a volume that is made where the manager looks for it. Once is enough; twice does no harm.
func (n *node) know(ctx context.Context, v volumeRecord) error {
	if v.PV == nil {
		return nil
	}
	pv := v.PV.DeepCopy()
	claim := claimOf(v)
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: namespace, Name: claim.Name, UID: claim.UID}
	pv.Status.Phase = v1.VolumeBound
	for _, object := range []store.Object{pv, claim} {
		if _, err := n.objects.Create(ctx, object); err != nil && !errors.Is(err, store.ErrAlreadyExists) {
			return err
		}
	}
	return nil
}

// forget undoes know.
func (n *node) forget(ctx context.Context, v volumeRecord) error {
	if v.PV == nil {
		return nil
	}
	for _, key := range []store.Key{
		{Kind: store.PersistentVolumeClaims, Namespace: namespace, Name: element(v.Name)}, {Kind: store.PersistentVolumes, Name: v.PV.Name},
	} {
		if err := n.objects.Delete(ctx, key, store.Preconditions{}); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}

// want has the manager make the volume available, and does not wait for that.
func (n *node) want(ctx context.Context, v volumeRecord) error {
	return n.manager.AddPod(ctx, podOf(v))
}

// setUp returns where the volume is, once it is there. A final error ends the wait: the manager would go on trying, and Docker shows
// no cause before that ends.
func (n *node) setUp(ctx context.Context, v volumeRecord) (path string, err error) {
	pod := podOf(v)
	podName := volume.GetUniquePodName(pod)
	name, err := n.plugins.UniqueVolumeName(podName, v.spec())
	if err != nil {
		return "", err
	}
	ctx, stop := n.failures.watch(ctx, podName, name)
	defer stop()
	if err := n.want(ctx, v); err != nil {
		return "", err
	}
	if err := n.manager.WaitForAttachAndMount(ctx, pod); err != nil {
		var final *finalError
		if errors.As(context.Cause(ctx), &final) {
			return "", fmt.Errorf("volume %s: %w", volume.Quote(v.Name), final)
		}
		return "", err
	}
	info, ok := n.manager.GetMountedVolumesForPod(podName)[outerName]
	if !ok {
		return "", fmt.Errorf("volume %s is being set up again: try again: %w", volume.Quote(v.Name), volume.ErrTransient)
	}
	return info.Path, nil
}

// release has the manager take the volume away: it goes on until that is done, whoever waits.
func (n *node) release(v volumeRecord) error { return n.manager.RemovePod(podOf(v).UID) }

// gone returns when nothing of the volume is left on this machine.
func (n *node) gone(ctx context.Context, v volumeRecord) error {
	if err := n.manager.WaitForUnmount(ctx, podOf(v)); err != nil {
		return err
	}
	if v.PV == nil {
		return nil
	}
	return n.manager.WaitForVolumeUnused(ctx, v.PV)
}

// status says of a volume what Docker shows under "Status".
func (n *node) status(v volumeRecord) map[string]any {
	shown := map[string]any{}
	if v.PV != nil {
		if size, ok := v.PV.Spec.Capacity[v1.ResourceStorage]; ok {
			shown["size"] = size.String()
		}
	}
	for _, s := range n.manager.PodStatus(podOf(v).UID) {
		shown["phase"] = string(s.Phase)
		if s.Err != nil {
			shown["error"] = cut(s.Err.Error())
		}
	}
	return shown
}

func claimOf(v volumeRecord) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: element(v.Name), UID: types.UID("claim-" + element(v.Name))},
		Spec: v1.PersistentVolumeClaimSpec{
			VolumeName: v.PV.Name, AccessModes: v.PV.Spec.AccessModes, VolumeMode: v.PV.Spec.VolumeMode,
			Resources: v1.VolumeResourceRequirements{Requests: v.PV.Spec.Capacity},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: v.PV.Spec.Capacity},
	}
}

// podOf returns the pod that stands for all uses of a volume.
func podOf(v volumeRecord) *v1.Pod {
	name := element(v.Name)
	source := v1.Volume{Name: outerName}
	if v.PV != nil {
		source.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}
	} else if v.Volume != nil {
		source.VolumeSource = v.Volume.VolumeSource
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "-" + name)},
		Spec: v1.PodSpec{
			Volumes: []v1.Volume{source},
			Containers: []v1.Container{{
				Name: "container", VolumeMounts: []v1.VolumeMount{{Name: outerName, MountPath: "/" + outerName}},
			}},
		},
	}
}

// digestPrefix begins the names of objects that stand for a name which no object can have.
const digestPrefix = "name-"

// element returns the name of a volume's objects and directories: its own where that can be one, else a digest.
func element(name string) string {
	if len(name) <= 63 && len(validation.IsDNS1123Subdomain(name)) == 0 && (len(name) < len(digestPrefix) || name[:len(digestPrefix)] != digestPrefix) {
		return name
	}
	return digestPrefix + digest(name)
}

// digest is 160 bits of a SHA-256.
func digest(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:20])
}

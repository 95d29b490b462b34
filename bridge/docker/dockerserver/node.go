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

// namespace is the namespace of the volumes' claims, in a store of this process. outerName is the volume's name in its
// pod.
const (
	namespace = "docker"
	outerName = "volume"
)

// node sets volumes up on this machine: each is the only volume of one pod, which represents all its uses.
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

// know adds an existing volume to the manager's store. A second call changes nothing.
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

// want adds the volume's pod to the manager, and does not wait for the set-up.
func (n *node) want(ctx context.Context, v volumeRecord) error {
	return n.manager.AddPod(ctx, podOf(v))
}

// setUp waits until the volume is set up, and returns its path. It returns on the first final error: the manager would
// retry, and Docker shows no cause until the call ends.
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

// release removes the volume's pod from the manager, which continues the teardown until it is done.
func (n *node) release(v volumeRecord) error { return n.manager.RemovePod(podOf(v).UID) }

// gone returns when no trace of the volume is left on this machine.
func (n *node) gone(ctx context.Context, v volumeRecord) error {
	if err := n.manager.WaitForUnmount(ctx, podOf(v)); err != nil {
		return err
	}
	if v.PV == nil {
		return nil
	}
	return n.manager.WaitForVolumeUnused(ctx, v.PV)
}

// status returns what Docker shows for a volume under "Status".
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

// podOf returns the pod that represents all uses of a volume.
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

// digestPrefix begins the names of objects whose volume has a name that no object can have.
const digestPrefix = "name-"

// element returns the name of a volume's objects and directories: the volume's name if it is valid for them, otherwise
// a digest.
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
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // writing to a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:20])
}

package populator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

const (
	// gidAnnotation is the annotation by which a PersistentVolume asks for a supplemental group, as in Kubernetes.
	gidAnnotation = "pv.beta.kubernetes.io/gid"
	// pvcProtection is the finalizer that keeps a deleted claim while pods use it, as in Kubernetes.
	pvcProtection = "kubernetes.io/pvc-protection"
)

// ErrClaimNotReady matches a claim that the pod cannot use yet: the claim is missing, not bound, or being deleted, or its
// PersistentVolume is missing or belongs to another claim. The manager tries again when the store changes.
var ErrClaimNotReady = errors.New("claim is not ready")

// resolution is the result of resolving one volume of a pod: what the pod wants of it, or an error and no spec.
type resolution struct {
	Volume

	want cache.AddPodOptions
}

// isMistake reports whether no change of the store can cure err: only another pod spec or another set of plugins can.
func isMistake(err error) bool {
	if errors.Is(err, ErrPluginAwaited) {
		return false
	}
	for _, target := range []error{
		volume.ErrInvalid, volume.ErrUnsupported, volume.ErrNoPlugin, volume.ErrMultiplePlugins,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// resolver identifies the volumes of a pod. It reads the store and changes nothing.
type resolver struct {
	plugins *volume.VolumePluginMgr
	store   store.Store
	seLinux Labels
	// dynamic says that plugins may be added later.
	dynamic bool
	// reading is called with each object before it is read.
	reading func(pod types.UID, key store.Key)
}

// resolve resolves each volume of pod that a container uses. pod must be valid, and must not change after the call: the
// specs refer to it.
func (r resolver) resolve(ctx context.Context, pod *v1.Pod) []resolution {
	mounting, mapping := usersOf(pod)
	answers := make([]resolution, 0, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		// Unused volumes are ignored, as in kubelet.
		if mounting[vol.Name] != "" || mapping[vol.Name] != "" {
			answers = append(answers, r.resolveVolume(ctx, pod, vol, func(spec *volume.Spec) error {
				return checkMode(spec, mounting[vol.Name], mapping[vol.Name])
			}))
		}
	}
	refuseSharedNames(pod, answers)
	shareWritable(answers)
	return answers
}

// refuseSharedNames refuses a PersistentVolume whose inner name is also that of an inline volume of the pod with the same
// plugin. The plugin would set up both at the same path.
func refuseSharedNames(pod *v1.Pod, answers []resolution) {
	for i, a := range answers {
		if a.Err != nil || a.want.VolumeSpec.PersistentVolume == nil {
			continue
		}
		for _, own := range answers {
			if own.Err == nil && own.want.VolumeSpec.Volume != nil && own.Plugin == a.Plugin && own.want.VolumeSpec.Name() == a.want.VolumeSpec.Name() {
				answers[i].want.VolumeSpec = nil
				answers[i].Err = fmt.Errorf("volume %q of pod %q: its PersistentVolume has the name of the pod's own volume %q, and plugin %q would set up both at one path: give that volume another name: %w",
					a.Outer, store.NameOf(pod), own.Outer, a.Plugin, volume.ErrInvalid)
				break
			}
		}
	}
}

// shareWritable gives all names of one volume the same spec: the first one that is writable, or else the first one. A pod
// that refers to a claim twice, once read-only, gets the volume once, and writable. So does a pod with two PersistentVolumes
// of one storage. Which of the names is read-only stays known.
func shareWritable(answers []resolution) {
	for i, a := range answers {
		if a.Err != nil {
			continue
		}
		of := func(other resolution) bool { return other.Err == nil && other.Name == a.Name }
		at := slices.IndexFunc(answers, func(other resolution) bool { return of(other) && !other.ReadOnly })
		if at < 0 {
			at = slices.IndexFunc(answers, of)
		}
		answers[i].want.VolumeSpec, answers[i].want.Plugin = answers[at].want.VolumeSpec, answers[at].want.Plugin
	}
}

func (r resolver) resolveVolume(ctx context.Context, pod *v1.Pod, vol *v1.Volume, checkMode func(*volume.Spec) error) resolution {
	a := resolution{Volume: Volume{Outer: vol.Name}, want: cache.AddPodOptions{Pod: pod, OuterVolumeSpecName: vol.Name}}
	if ref, ok := claimOf(pod, vol); ok {
		a.Err = r.resolveClaim(ctx, ref, &a)
	} else {
		a.want.VolumeSpec = volume.NewSpecFromVolume(vol)
	}
	if a.Err == nil {
		a.Err = checkMode(a.want.VolumeSpec)
	}
	if a.Err == nil {
		a.Err = r.findPlugin(pod, &a)
	}
	if a.Err == nil {
		a.want.SELinuxLabels, a.Err = labelsOf(r.seLinux, pod, vol)
	}
	if a.Err != nil {
		a.want.VolumeSpec = nil
		a.Err = fmt.Errorf("volume %q of pod %q: %w", vol.Name, store.NameOf(pod), a.Err)
	}
	return a
}

// findPlugin finds the plugin of a volume and the volume's unique name. It checks the name of the spec, because paths
// contain it. It asks the registry once for everything that the manager has to know about the plugin. An operation asks
// again, because the plugin may be another one by then.
func (r resolver) findPlugin(pod *v1.Pod, a *resolution) error {
	spec := a.want.VolumeSpec
	if err := errors.Join(volume.CheckPathElement(spec.Name()), volume.CheckSources(spec)); err != nil {
		return err
	}
	plugin, err := r.plugins.Resolve(spec)
	if err != nil {
		return r.awaitPlugin(err)
	}
	a.want.Plugin, a.Plugin = plugin, plugin.PluginName
	a.Name, err = plugin.UniqueVolumeName(volume.GetUniquePodName(pod))
	return err
}

// claimRef is a pod's reference to a claim.
type claimRef struct {
	pod      *v1.Pod
	name     string
	readOnly bool
	// ephemeral says that the claim was made for this pod alone. The pod must then own it.
	ephemeral bool
}

// claimOf returns the claim that a volume of a pod refers to; false if it refers to none.
func claimOf(pod *v1.Pod, vol *v1.Volume) (claimRef, bool) {
	switch {
	case vol.PersistentVolumeClaim != nil:
		return claimRef{pod: pod, name: vol.PersistentVolumeClaim.ClaimName, readOnly: vol.PersistentVolumeClaim.ReadOnly}, true
	case vol.Ephemeral != nil:
		return claimRef{pod: pod, name: pod.Name + "-" + vol.Name, ephemeral: true}, true
	}
	return claimRef{}, false
}

// resolveClaim finds the PersistentVolume of a claim, and makes it the volume that a wants.
func (r resolver) resolveClaim(ctx context.Context, ref claimRef, a *resolution) error {
	if r.store == nil {
		return fmt.Errorf("it refers to claim %q and this manager has no store of claims (Options.Store): %w", ref.name, volume.ErrUnsupported)
	}
	claim, err := r.claim(ctx, ref)
	if err != nil {
		return err
	}
	pv, err := r.persistentVolume(ctx, ref, claim)
	if err != nil {
		return err
	}
	a.want.VolumeSpec, a.want.VolumeGidValue = volume.NewSpecFromPersistentVolume(pv, ref.readOnly), pv.Annotations[gidAnnotation]
	a.ReadOnly = ref.readOnly
	return nil
}

func (r resolver) claim(ctx context.Context, ref claimRef) (*v1.PersistentVolumeClaim, error) {
	namespace := ref.pod.Namespace
	key := store.Key{Kind: store.PersistentVolumeClaims, Namespace: namespace, Name: ref.name}
	if err := volume.CheckPathElement(ref.name); err != nil {
		return nil, fmt.Errorf("name of its claim: %w", err)
	}
	r.reading(ref.pod.UID, key)
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, r.store, namespace, ref.name)
	if err != nil {
		return nil, unready(err, "create claim %q", namespace+"/"+ref.name)
	}
	name := volume.GetPersistentVolumeClaimQualifiedName(claim)
	switch {
	case ref.ephemeral && !metav1.IsControlledBy(claim, ref.pod):
		return nil, fmt.Errorf("claim %q was not made for this pod: delete it or rename the volume: %w", name, ErrClaimNotReady)
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, pvcProtection):
		return nil, fmt.Errorf("claim %q is being deleted: %w", name, ErrClaimNotReady)
	case claim.Spec.VolumeName == "" || claim.Status.Phase != v1.ClaimBound:
		return nil, unbound(claim)
	}
	return claim, nil
}

// unbound returns the error for a claim without a volume. It names the reason if the claim's controller has written one to
// the claim's status.
func unbound(claim *v1.PersistentVolumeClaim) error {
	name := volume.GetPersistentVolumeClaimQualifiedName(claim)
	if why := volume.WhyUnbound(claim); why != "" {
		return fmt.Errorf("claim %q is not bound to a volume yet: %s: %w", name, why, ErrClaimNotReady)
	}
	hint := ""
	if claim.Status.Phase == "" {
		hint = ": no controller has looked at it: is controller/persistentvolume, or another one, running on this store?"
	}
	return fmt.Errorf("claim %q is not bound to a volume yet (phase %q)%s: %w", name, claim.Status.Phase, hint, ErrClaimNotReady)
}

func (r resolver) persistentVolume(
	ctx context.Context, ref claimRef, claim *v1.PersistentVolumeClaim,
) (*v1.PersistentVolume, error) {
	name := claim.Spec.VolumeName
	claimName := volume.GetPersistentVolumeClaimQualifiedName(claim)
	r.reading(ref.pod.UID, store.Key{Kind: store.PersistentVolumes, Name: name})
	pv, err := store.Get[*v1.PersistentVolume](ctx, r.store, "", name)
	if err != nil {
		return nil, unready(err, "claim %q is bound to it", claimName)
	}
	switch owner := pv.Spec.ClaimRef; {
	case owner == nil:
		return nil, fmt.Errorf("PersistentVolume %q of claim %q has no claimRef: %w", name, claimName, ErrClaimNotReady)
	case owner.UID != claim.UID:
		return nil, fmt.Errorf("PersistentVolume %q belongs to claim %q with UID %q, not to claim %q with UID %q: %w",
			name, owner.Namespace+"/"+owner.Name, owner.UID, claimName, claim.UID, ErrClaimNotReady)
	case volume.CheckPersistentVolumeClaimModeBlock(claim) != volume.IsBlock(volume.NewSpecFromPersistentVolume(pv, false)):
		return nil, fmt.Errorf("claim %q and its PersistentVolume %q do not have the same volumeMode: %w", claimName, name, ErrClaimNotReady)
	}
	return pv, nil
}

// unready adds to an error of the store what it means for the pod. A missing object may still be created: the claim is then
// not ready.
func unready(err error, format, name string) error {
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: "+format+": %w", ErrClaimNotReady, name, err)
	}
	return fmt.Errorf(format+": %w", name, err)
}

// checkMode refuses a block volume that a container mounts, and a filesystem volume that a container uses as a device. An
// empty name means that no container does.
func checkMode(spec *volume.Spec, mountedBy, mappedBy string) error {
	mode, err := volume.GetVolumeMode(spec)
	switch {
	case err != nil:
		return err
	case mode == v1.PersistentVolumeBlock && mountedBy != "":
		return fmt.Errorf("%q has volumeMode Block, but container %q mounts it (volumeMounts): list it under volumeDevices: %w",
			spec.Name(), mountedBy, volume.ErrInvalid)
	case mode == v1.PersistentVolumeFilesystem && mappedBy != "":
		return fmt.Errorf("%q has volumeMode Filesystem, but container %q uses it as a device (volumeDevices): list it under volumeMounts: %w",
			spec.Name(), mappedBy, volume.ErrInvalid)
	}
	return nil
}

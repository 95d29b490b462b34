package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

const (
	// gidAnnotation is where a PersistentVolume asks for a supplemental group, as in Kubernetes.
	gidAnnotation = "pv.beta.kubernetes.io/gid"
	// pvcProtection keeps a claim that is being deleted for the pods that use it, as in Kubernetes.
	pvcProtection = "kubernetes.io/pvc-protection"
)

// ErrClaimNotReady matches what keeps a pod from its claim for now: the claim is missing, not bound, or being deleted, or
// its PersistentVolume is missing or belongs to another claim. The pod is looked at again when the store changes.
var ErrClaimNotReady = errors.New("claim is not ready")

// resolution is what became of one volume of a pod: a spec and its plugin, or an error.
type resolution struct {
	outer string
	spec  *volume.Spec
	// plugin is what the registry says of the spec's plugin, which is asked once for all that the manager knows of it. An
	// operation asks again, for the plugin that is there when it runs.
	plugin volume.Resolved
	name   v1.UniqueVolumeName
	gid    string
	// labels are the SELinux labels of the containers that use it.
	labels []string
	// readOnly says that the pod's reference to its claim asks for read-only.
	readOnly bool
	err      error
}

// isMistake reports whether err is one that no change of the store mends, so that the pod itself is to be changed, or
// the set of plugins.
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

// resolver finds out what the volumes of a pod are. It reads the store and changes nothing.
type resolver struct {
	plugins *volume.VolumePluginMgr
	store   store.Store
	seLinux SELinuxLabels
	// dynamic says that plugins may come.
	dynamic bool
	// reading is told of each object before it is read.
	reading func(pod types.UID, key store.Key)
}

// resolve answers for each volume of pod that a container uses. pod must be valid and must not change any more: specs
// refer to it.
func (r resolver) resolve(ctx context.Context, pod *v1.Pod) []resolution {
	used := usedVolumes(pod)
	answers := make([]resolution, 0, len(used))
	for _, u := range used {
		answers = append(answers, r.resolveVolume(ctx, pod, u))
	}
	refuseSharedNames(pod, answers)
	shareWritable(answers)
	return answers
}

// refuseSharedNames refuses a PersistentVolume that has the inner name of one of the pod's own volumes of the same plugin: both
// would be set up at the same path.
func refuseSharedNames(pod *v1.Pod, answers []resolution) {
	for i, a := range answers {
		if a.err != nil || a.spec.PersistentVolume == nil {
			continue
		}
		for _, own := range answers {
			if own.err == nil && own.spec.Volume != nil && own.plugin.PluginName == a.plugin.PluginName && own.spec.Name() == a.spec.Name() {
				answers[i].spec = nil
				answers[i].err = fmt.Errorf("volume %q of pod %q: its PersistentVolume has the name of the pod's own volume %q, and plugin %q would set up both at one path: give that volume another name: %w",
					a.outer, podKey(pod), own.outer, a.plugin.PluginName, volume.ErrInvalid)
				break
			}
		}
	}
}

// shareWritable gives all names of one volume the same spec. A pod that refers to a claim twice, once read-only, gets it
// writable, once; which name is read-only stays known.
func shareWritable(answers []resolution) {
	for i, a := range answers {
		for _, other := range answers {
			if a.err == nil && a.readOnly && other.err == nil && other.name == a.name && !other.readOnly {
				answers[i].spec, answers[i].plugin = other.spec, other.plugin
			}
		}
	}
}

func (r resolver) resolveVolume(ctx context.Context, pod *v1.Pod, u usedVolume) resolution {
	vol := u.vol
	answer := resolution{outer: vol.Name}
	if ref, ok := claimOf(pod, vol); ok {
		r.resolveClaim(ctx, ref, &answer)
	} else {
		answer.spec = volume.NewSpecFromVolume(vol)
	}
	if answer.err == nil {
		answer.err = u.checkMode(answer.spec)
	}
	if answer.err == nil {
		answer.err = r.findPlugin(pod, &answer)
	}
	if answer.err == nil {
		answer.labels, answer.err = labelsOf(r.seLinux, pod, vol)
	}
	if answer.err != nil {
		answer.spec = nil
		answer.err = fmt.Errorf("volume %q of pod %q: %w", vol.Name, podKey(pod), answer.err)
	}
	return answer
}

// findPlugin names the volume, too. The spec's own name is checked, because it becomes an element of paths.
func (r resolver) findPlugin(pod *v1.Pod, answer *resolution) error {
	if err := errors.Join(volume.CheckPathElement(answer.spec.Name()), volume.CheckSources(answer.spec)); err != nil {
		return err
	}
	plugin, err := r.plugins.Resolve(answer.spec)
	if err != nil {
		return r.awaitPlugin(err)
	}
	answer.plugin = plugin
	answer.name, err = plugin.UniqueVolumeName(volume.GetUniquePodName(pod))
	return err
}

// claimRef is how a pod refers to a claim.
type claimRef struct {
	pod      *v1.Pod
	name     string
	readOnly bool
	// ephemeral says that the claim was made for this pod alone, so that the pod must own it.
	ephemeral bool
}

// claimOf returns the claim that a volume of a pod refers to, and false when it needs none.
func claimOf(pod *v1.Pod, vol *v1.Volume) (claimRef, bool) {
	switch {
	case vol.PersistentVolumeClaim != nil:
		return claimRef{pod: pod, name: vol.PersistentVolumeClaim.ClaimName, readOnly: vol.PersistentVolumeClaim.ReadOnly}, true
	case vol.Ephemeral != nil:
		return claimRef{pod: pod, name: pod.Name + "-" + vol.Name, ephemeral: true}, true
	}
	return claimRef{}, false
}

// resolveClaim goes from the claim to its PersistentVolume and fills in answer.
func (r resolver) resolveClaim(ctx context.Context, ref claimRef, answer *resolution) {
	if r.store == nil {
		answer.err = fmt.Errorf("it refers to claim %q and this manager has no store of claims (Options.Store): %w",
			ref.name, volume.ErrUnsupported)
		return
	}
	claim, err := r.claim(ctx, ref)
	if err != nil {
		answer.err = err
		return
	}
	pv, err := r.persistentVolume(ctx, ref, claim)
	if err != nil {
		answer.err = err
		return
	}
	answer.spec = volume.NewSpecFromPersistentVolume(pv, ref.readOnly)
	answer.gid, answer.readOnly = pv.Annotations[gidAnnotation], ref.readOnly
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

// unbound says that a claim has no volume, and why, as far as its controller has written that into its status.
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
	case volume.CheckPersistentVolumeClaimModeBlock(claim) != isBlock(volume.NewSpecFromPersistentVolume(pv, false)):
		return nil, fmt.Errorf("claim %q and its PersistentVolume %q do not have the same volumeMode: %w", claimName, name, ErrClaimNotReady)
	}
	return pv, nil
}

// unready adds to an error of the store what it means for the pod. An object that is missing may still come.
func unready(err error, format, name string) error {
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: "+format+": %w", ErrClaimNotReady, name, err)
	}
	return fmt.Errorf(format+": %w", name, err)
}

// checkMode refuses a volume that is a block device for a container that mounts it, and the other way round.
func (u usedVolume) checkMode(spec *volume.Spec) error {
	mode, err := volume.GetVolumeMode(spec)
	switch {
	case err != nil:
		return err
	case mode == v1.PersistentVolumeBlock && u.mountedBy != "":
		return fmt.Errorf("%q has volumeMode Block, but container %q mounts it (volumeMounts): list it under volumeDevices: %w",
			spec.Name(), u.mountedBy, volume.ErrInvalid)
	case mode == v1.PersistentVolumeFilesystem && u.mappedBy != "":
		return fmt.Errorf("%q has volumeMode Filesystem, but container %q uses it as a device (volumeDevices): list it under volumeMounts: %w",
			spec.Name(), u.mappedBy, volume.ErrInvalid)
	}
	return nil
}

// isBlock reports whether pods get the volume as a device.
func isBlock(spec *volume.Spec) bool {
	return volume.IsBlock(spec)
}

// podKey returns the namespace and name of pod.
func podKey(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// podVolumes are the volumes that one pod needs on its node.
type podVolumes struct {
	uid     types.UID
	node    types.NodeName
	volumes map[v1.UniqueVolumeName]struct{}
}

// populator puts the volumes that pods need into the desired state. populate is called by one goroutine at a time; the other methods by several.
type populator struct {
	objects objects
	health  *nodesHealth
	desired *cluster.DesiredStateOfWorld
	actual  *cluster.ActualStateOfWorld
	logger  *slog.Logger
	dirty   *workqueue.Queue[types.NamespacedName] // the pods to populate
	known   map[types.NamespacedName]podVolumes
	// names are the known pods of a UID: users' stores may have several.
	names map[types.UID][]types.NamespacedName
}

func (p *populator) changed(pod *v1.Pod) { p.dirty.Add(store.NameOf(pod)) }

// claimChanged queues the pods that refer to a claim.
func (p *populator) claimChanged(name types.NamespacedName) {
	for _, pod := range p.objects.podsOfClaim.Get(name) {
		p.changed(pod)
	}
}

// run populates dirty pods until ctx ends.
func (p *populator) run(ctx context.Context) {
	for {
		name, ok := p.dirty.Get(ctx)
		if !ok {
			return
		}
		p.populate(name)
	}
}

// populate puts the volumes of a pod into the desired state. A volume that cannot be resolved now stays in it if it was there: unknown
// is not absent. It does no I/O; a change of what it waits for makes the pod dirty again.
func (p *populator) populate(name types.NamespacedName) {
	pod, there := p.objects.pods.Get(name)
	had, known := p.known[name]
	if known && (!there || pod.UID != had.uid || types.NodeName(pod.Spec.NodeName) != had.node) {
		p.forget(name)
		had = podVolumes{}
	}
	if !there || pod.Spec.NodeName == "" {
		return
	}
	if volume.IsPodTerminated(pod) || p.isUnmanaged(types.NodeName(pod.Spec.NodeName)) {
		p.forget(name)
		return
	}
	wants, err := p.addToDesired(pod, had)
	if err != nil {
		p.logger.Info("not every volume of a pod is known", "pod", name.String(), "error", err)
	}
	for _, gone := range slices.Sorted(maps.Keys(had.volumes)) {
		if _, still := wants.volumes[gone]; !still && err == nil {
			p.deleteFromVolume(name, had, gone)
		} else if !still {
			wants.volumes[gone] = struct{}{}
		}
	}
	p.known[name] = wants
	if names := p.names[wants.uid]; !slices.Contains(names, name) {
		p.names[wants.uid] = append(names, name)
	}
}

// forget takes the volumes of a pod out of the desired state.
func (p *populator) forget(name types.NamespacedName) {
	had, known := p.known[name]
	if !known {
		return
	}
	for _, gone := range slices.Sorted(maps.Keys(had.volumes)) {
		p.deleteFromVolume(name, had, gone)
	}
	delete(p.known, name)
	p.names[had.uid] = slices.DeleteFunc(p.names[had.uid], func(other types.NamespacedName) bool { return other == name })
	if len(p.names[had.uid]) == 0 {
		delete(p.names, had.uid)
	}
}

// deleteFromVolume takes a pod out of the desired state of one volume, unless another pod with the same UID on the same node
// needs the volume: the desired state knows pods by their UIDs.
func (p *populator) deleteFromVolume(name types.NamespacedName, had podVolumes, gone v1.UniqueVolumeName) {
	for _, other := range p.names[had.uid] {
		if needs := p.known[other]; other != name && needs.node == had.node {
			if _, does := needs.volumes[gone]; does {
				return
			}
		}
	}
	p.desired.DeletePodFromVolume(volume.UniquePodName(had.uid), gone, had.node)
}

// isUnmanaged reports whether a node's object says that another program attaches its volumes. A node without an object may be this
// controller's: the volumes of its pods stay desired.
func (p *populator) isUnmanaged(name types.NodeName) bool { return p.health.of(name) == unmanaged }

// addToDesired adds the volumes of a pod to the desired state. The error names those that cannot be resolved.
func (p *populator) addToDesired(pod *v1.Pod, had podVolumes) (podVolumes, error) {
	node := types.NodeName(pod.Spec.NodeName)
	wants := podVolumes{uid: pod.UID, node: node, volumes: make(map[v1.UniqueVolumeName]struct{}, len(had.volumes))}
	var errs []error
	for i := range pod.Spec.Volumes {
		spec, err := p.specOf(pod, &pod.Spec.Volumes[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		name, err := p.desired.AddPod(pod, spec)
		switch {
		case errors.Is(err, volume.ErrNoPlugin): // It is none of this controller's.
		case err != nil:
			errs = append(errs, err)
		case name != "":
			wants.volumes[name] = struct{}{}
			p.actual.SetVolumeSpec(name, node, spec)
		}
	}
	return wants, errors.Join(errs...)
}

// specOf returns one volume of a pod, through its claim where it has one. UIDs are compared at each step.
func (p *populator) specOf(pod *v1.Pod, vol *v1.Volume) (*volume.Spec, error) {
	ref, ok := volume.ClaimOfVolume(pod, vol)
	if !ok {
		return volume.NewSpecFromVolume(vol), nil
	}
	name := ref.Name
	claim, ok := p.objects.claims.Get(name)
	switch {
	case !ok:
		return nil, fmt.Errorf("claim %q: %w", name, store.ErrNotFound)
	case !ref.OwnedBy(claim, pod):
		return nil, fmt.Errorf("claim %q was not made for pod %q: delete it or rename the volume: %w", name, store.NameOf(pod), volume.ErrInvalid)
	case claim.Spec.VolumeName == "" || claim.Status.Phase != v1.ClaimBound:
		return nil, fmt.Errorf("claim %q is not bound to a volume yet", name)
	}
	pv, ok := p.objects.volumes.Get(types.NamespacedName{Name: claim.Spec.VolumeName})
	switch {
	case !ok:
		return nil, fmt.Errorf("PersistentVolume %q of claim %q: %w", claim.Spec.VolumeName, name, store.ErrNotFound)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return nil, fmt.Errorf("PersistentVolume %q belongs to another claim than %q with UID %q: %w", pv.Name, name, claim.UID, store.ErrConflict)
	}
	return volume.NewSpecFromPersistentVolume(pv, ref.ReadOnly), nil
}

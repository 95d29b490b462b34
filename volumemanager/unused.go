package volumemanager

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// WaitForVolumeUnused returns when nothing on this node uses a PersistentVolume. Then no added pod wants it, it is certainly not set up,
// staged or attached, and no operation on it runs. A pod whose claims are being read counts as a user if it refers to the claim that pv
// names. Volumes of an earlier manager count, too: a manager with records waits until it knows them.
//
// A controller of claims calls it before it deletes a volume. If ctx has ended already, it answers at once. Its error is that of
// [Manager.WaitForAttachAndMount], without a pod. For a nil pv, or one without a name, the error matches [volume.ErrInvalid].
func (m *Manager) WaitForVolumeUnused(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv == nil || pv.Name == "" {
		return fmt.Errorf("wait until a volume is not used: the PersistentVolume has no name: %w", volume.ErrInvalid)
	}
	search := m.view.searchFor(pv)
	var use podvolume.Key // While this use exists, a change needs no new search.
	return m.wait(ctx, &v1.Pod{}, awaited{
		state: "unused",
		known: m.recovery.AllKnown(),
		isReady: func() (bool, error) {
			if m.view.isUse(use) {
				return false, nil
			}
			uses := search.uses()
			if len(uses) > 0 {
				use = uses[0]
			}
			return len(uses) == 0, nil
		},
		missing: func() []VolumeStatus { return m.view.statusOfUses(search.uses()) },
	})
}

// isUse reports whether the pod still wants or has the volume.
func (n *nodeView) isUse(u podvolume.Key) bool {
	return n.desired.PodExistsInVolume(u.Pod, u.Volume) || !n.actual.PodRemovedFromVolume(u.Pod, u.Volume)
}

// volumeSearch looks for the users of a PersistentVolume.
type volumeSearch struct {
	view *nodeView
	pv   *v1.PersistentVolume
	spec *volume.Spec
	// shared is the unique name of a volume that pods share. It is empty if each pod has its own, or if no plugin serves the volume.
	shared v1.UniqueVolumeName
}

func (n *nodeView) searchFor(pv *v1.PersistentVolume) volumeSearch {
	s := volumeSearch{view: n, pv: pv, spec: volume.NewSpecFromPersistentVolume(pv, false)}
	const one, other = volume.UniquePodName("one"), volume.UniquePodName("other")
	if name := s.nameFor(one); name == s.nameFor(other) {
		s.shared = name
	}
	return s
}

// nameFor returns the unique name that the volume has for a pod; empty if no plugin serves it.
func (s volumeSearch) nameFor(pod volume.UniquePodName) v1.UniqueVolumeName {
	name, err := s.view.plugins.UniqueVolumeName(pod, s.spec)
	if err != nil {
		return ""
	}
	return name
}

// uses returns the users of the volume. A use by the node itself has no pod. A pod whose claims are being read has no volume yet. uses
// searches in the order in which a use moves on: the claims of a pod are read, the pod wants the volume, an operation begins, the volume
// is in the actual state. So it misses no use that moves on meanwhile. It searches operations once more in the end, because the
// operation that removes a volume runs longer than the volume is in the actual state.
func (s volumeSearch) uses() []podvolume.Key {
	var uses []podvolume.Key
	for _, pod := range s.view.populator.Readers(s.pv) {
		uses = append(uses, podvolume.Key{Pod: pod})
	}
	for row := range s.view.desired.AllVolumesToMount() {
		if s.names(row.VolumeName) || s.isIn(row.VolumeSpec) {
			uses = append(uses, podvolume.Key{Volume: row.VolumeName, Pod: row.PodName})
		}
	}
	uses = append(uses, s.operations()...)
	for row := range s.view.actual.AllMountedVolumes() {
		if s.names(row.VolumeName) || s.isMounted(row) {
			uses = append(uses, podvolume.Key{Volume: row.VolumeName, Pod: row.PodName})
		}
	}
	for _, row := range s.view.actual.GetUnmountedVolumes() {
		if s.names(row.VolumeName) || s.isIn(row.VolumeSpec) || row.VolumeSpec != nil && row.VolumeSpec.Name() == s.pv.Name {
			uses = append(uses, podvolume.Key{Volume: row.VolumeName})
		}
	}
	if len(uses) > 0 {
		return uses
	}
	return s.operations()
}

// names reports whether a unique name is that of the volume, if pods share it.
func (s volumeSearch) names(name v1.UniqueVolumeName) bool { return s.shared != "" && name == s.shared }

// isIn reports whether a spec is that of the PersistentVolume.
func (s volumeSearch) isIn(spec *volume.Spec) bool {
	return spec != nil && spec.PersistentVolume != nil && spec.PersistentVolume.Name == s.pv.Name
}

// isMounted reports whether a set-up is of the PersistentVolume. For a set-up that was found after a restart, the plugin may have made a
// spec of another kind: then the inner name counts.
func (s volumeSearch) isMounted(row *cache.MountedVolume) bool {
	return s.isIn(row.VolumeSpec) || row.Reconstructed && row.InnerVolumeSpecName == s.pv.Name
}

// operations returns the operations on the volume that run, or are certain to begin.
func (s volumeSearch) operations() []podvolume.Key {
	var uses []podvolume.Key
	for _, h := range s.view.reconciler.Running() {
		if s.names(h.Volume) || h.Pod != "" && h.Volume == s.nameFor(h.Pod) {
			uses = append(uses, h)
		}
	}
	return uses
}

// statusOfUses returns the status of volumes for their users.
func (n *nodeView) statusOfUses(uses []podvolume.Key) []VolumeStatus {
	var rows []VolumeStatus
	for _, use := range uses {
		of := n.statusOfUnused(use.Volume)
		if use.Pod != "" {
			of = n.statusOfPod(types.UID(use.Pod))
		}
		for _, row := range of {
			isKnown := func(other VolumeStatus) bool { return other.PodUID == row.PodUID && other.Volume == row.Volume }
			if row.Volume == use.Volume && !slices.ContainsFunc(rows, isKnown) {
				rows = append(rows, row)
			}
		}
	}
	return rows
}

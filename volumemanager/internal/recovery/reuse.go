package recovery

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/mounter"
)

// This file lets a pod use the set-up of an earlier manager after a restart, without another set-up. The plugin must
// say that a set-up would change nothing (volume.ReusableVolumePlugin). The record must say that the last set-up
// succeeded, and with which inputs. The mount table must have the recorded mount. The pod must need the same. If one of
// these is missing, the volume is set up again.

// Reuse makes a found volume ready for a pod without a set-up, and reports whether it did.
func (r *Recovery) Reuse(ctx context.Context, row *operationexecutor.VolumeToMount, found *cache.MountedVolume) bool {
	if r.options.Journal == nil || row.Pod == nil || row.PluginIsAttachable || row.PluginIsDeviceMountable || row.VolumeSpec == nil {
		return false
	}
	if can, err := r.options.Plugins.CanReuse(row.VolumeSpec); err != nil || !can {
		return false
	}
	known := r.options.Journal.SetUpOf(row.VolumeName, row.Pod.UID)
	if known == nil || !needsSame(row, found, known) || !r.options.Journal.IsMounted(ctx, known) {
		return false
	}
	if err := r.markMounted(row, known.Path); err != nil {
		r.options.Logger.Warn("a volume that was found is set up again", "volume", row.VolumeName, "pod", row.PodName, "error", err)
		return false
	}
	r.options.Notify(row.PodName)
	r.reused.Add(1)
	return true
}

// needsSame reports whether a pod needs a volume exactly as it was set up.
func needsSame(row *operationexecutor.VolumeToMount, found *cache.MountedVolume, known *journal.SetUp) bool {
	return known.WasMadeWith(row.MounterArgs()) && row.SELinuxLabel == known.SELinux &&
		row.Pod.Namespace == known.Namespace && row.Pod.Name == known.Name &&
		slices.Equal(row.OuterVolumeSpecNames, known.OuterNames) && sameSpec(found.VolumeSpec, row.VolumeSpec)
}

// sameSpec reports whether a spec from a record is that of a volume.
func sameSpec(recorded, spec *volume.Spec) bool {
	switch {
	case recorded == nil || spec == nil || recorded.ReadOnly != spec.ReadOnly:
		return false
	case recorded.Volume != nil:
		return equality.Semantic.DeepEqual(recorded.Volume, spec.Volume)
	case recorded.PersistentVolume == nil || spec.PersistentVolume == nil:
		return false
	}
	old, now := recorded.PersistentVolume, spec.PersistentVolume
	return old.Name == now.Name && old.UID == now.UID && equality.Semantic.DeepEqual(old.Spec, now.Spec)
}

// markMounted counts a volume that was found mounted at path as set up for a pod.
func (r *Recovery) markMounted(row *operationexecutor.VolumeToMount, path string) error {
	plugin, err := r.options.Plugins.FindPluginBySpec(row.VolumeSpec)
	if err != nil {
		return err
	}
	made, err := mounter.Make(plugin, row.VolumeSpec, row.Pod)
	if err != nil {
		return err
	}
	if made.GetPath() != path {
		return fmt.Errorf("plugin %q sets the volume up at %q, not at %q: %w", row.PluginName, made.GetPath(), path, errDisagree)
	}
	return r.options.Actual.MarkVolumeAsMounted(operationexecutor.MountedVolume{
		VolumeName: row.VolumeName, PodName: row.PodName, PodUID: row.Pod.UID, Pod: row.Pod, VolumeSpec: row.VolumeSpec,
		OuterVolumeSpecNames: row.OuterVolumeSpecNames, Mounter: made, MountPath: path, VolumeGidValue: row.VolumeGidValue,
		SELinuxMountContext: row.SELinuxLabel, Incarnation: row.Incarnation,
	})
}

package volumemanager

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/mounter"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
)

// This file lets a pod use a volume after a restart as an earlier manager has set it up, without another set-up. Its plugin
// must say that a set-up would change nothing (volume.ReusableVolumePlugin), the record that the last set-up succeeded and how
// it was made, the mount table that the mount of the record is there, and the pod must ask for the same. Where one of these is
// missing, the volume is set up again.

// settledRecord is how a set-up was made that has succeeded: what must be the same when it is to be used as it is.
type settledRecord struct {
	User        string `json:"fsUser,omitempty"`
	Group       string `json:"fsGroup,omitempty"`
	GroupPolicy string `json:"fsGroupChangePolicy,omitempty"`
	Size        string `json:"size,omitempty"`
	// Options are those of the mount, joined.
	Options string `json:"options,omitempty"`
	// ReadOnly says that the filesystem of the mount is read-only.
	ReadOnly bool `json:"readOnlyFilesystem,omitempty"`
}

func settledRecordOf(args volume.MounterArgs, found seenMount) settledRecord {
	s := settledRecord{User: numberOf(args.FsUser), Group: numberOf(args.FsGroup), Options: found.options, ReadOnly: found.readOnly}
	if args.FSGroupChangePolicy != nil {
		s.GroupPolicy = string(*args.FSGroupChangePolicy)
	}
	if args.DesiredSize != nil {
		s.Size = args.DesiredSize.String()
	}
	return s
}

func numberOf(id *int64) string {
	if id == nil {
		return ""
	}
	return strconv.FormatInt(*id, 10)
}

// settled returns how the set-up of an intent that has succeeded was made; nil when the next start is to set it up again.
func (j *journal) settled(r *volumeRecord, intent operationexecutor.Intent, found seenMount) *settledRecord {
	if intent.SetUpArgs == nil || found.Unique == 0 || !j.reusable(intent.Spec) || !j.holdsSpec(r, intent) {
		return nil
	}
	s := settledRecordOf(*intent.SetUpArgs, found)
	return &s
}

// holdsSpec reports whether the record holds the spec of an intent, and all of it. The spec on record is that of the volume's
// first pod; another pod may have been given a later one.
func (j *journal) holdsSpec(r *volumeRecord, intent operationexecutor.Intent) bool {
	public := j.public(intent.PluginName)
	if !intent.Spec.IsPublic(public) {
		return false
	}
	if r.encoded == intent.Spec {
		return true
	}
	spec, err := encodeSpec(intent.Spec, public)
	return err == nil && slices.Equal(spec, r.Spec)
}

// settle enters how the set-up of an intent was made, and reports whether that changed r.
func (r *volumeRecord) settle(intent operationexecutor.Intent, s *settledRecord) bool {
	p := r.Pods[intent.PodUID]
	if p == nil || partOf(intent) != partSetUp || equality.Semantic.DeepEqual(p.Settled, s) {
		return false
	}
	next := *p
	next.Settled = s
	r.Pods[intent.PodUID] = &next
	return true
}

// unsettle says that a set-up is about to be made, or made anew, and reports whether that changed r. A teardown need not say
// so: until it has unmounted the volume, the set-up is what it was.
func (r *volumeRecord) unsettle(intent operationexecutor.Intent) bool {
	return intent.Kind == operationexecutor.OpMount && r.settle(intent, nil)
}

// canReuse reports whether the plugin of a volume says that the volume needs no set-up after a restart.
func (m *Manager) canReuse(spec *volume.Spec) bool {
	if spec == nil {
		return false
	}
	yes, err := m.plugins.CanReuse(spec)
	return yes && err == nil
}

// reuse makes a volume that was found after a restart ready for a pod without a set-up, and reports whether it did.
func (m *Manager) reuse(ctx context.Context, row *operationexecutor.VolumeToMount, found *cache.MountedVolume) bool {
	if m.journal == nil || m.journal.mounts == nil {
		return false
	}
	if row.Pod == nil || row.PluginIsAttachable || row.PluginIsDeviceMountable || !m.canReuse(row.VolumeSpec) {
		return false
	}
	known := m.journal.setUpOf(row.VolumeName, row.Pod.UID)
	if known == nil || known.Settled == nil || !asksForTheSame(row, found, known) || !m.isMountedAs(ctx, known) {
		return false
	}
	mounter, err := m.mounterOf(row, known.Path)
	if err == nil {
		err = m.actual.reuse(row, mounter, known.Path)
	}
	if err != nil {
		m.options.Logger.Warn("a volume that was found is set up again", "volume", row.VolumeName, "pod", row.PodName, "error", err)
		return false
	}
	m.reused.Add(1)
	return true
}

// asksForTheSame reports whether a pod wants a volume in all as it was set up.
func asksForTheSame(row *operationexecutor.VolumeToMount, found *cache.MountedVolume, known *setUpRecord) bool {
	want := settledRecordOf(row.MounterArgs(), seenMount{options: known.Settled.Options, readOnly: known.Settled.ReadOnly})
	return want == *known.Settled && row.SELinuxLabel == known.SELinux &&
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

// reuseTimeout bounds the look at the mount of a record.
const reuseTimeout = 10 * time.Second

// isMountedAs reports whether the mount of a record is the uppermost one at its path, with the options that it had. It must
// have an id that no other mount ever gets.
func (m *Manager) isMountedAs(ctx context.Context, known *setUpRecord) bool {
	ctx, cancel := context.WithTimeout(ctx, reuseTimeout)
	defer cancel()
	found, err := m.journal.mounts.Lookup(ctx, known.Path)
	if err != nil || known.Mount.Unique == 0 || found.UniqueID != known.Mount.Unique || mountwatch.HasFailed(found) {
		return false
	}
	now := seenMountOf(found)
	return now.options == known.Settled.Options && now.readOnly == known.Settled.ReadOnly
}

// mounterOf returns a mounter of a volume that is set up at path.
func (m *Manager) mounterOf(row *operationexecutor.VolumeToMount, path string) (volume.Mounter, error) {
	plugin, err := m.plugins.FindPluginBySpec(row.VolumeSpec)
	if err != nil {
		return nil, err
	}
	made, err := guarded("NewMounter of volume "+string(row.VolumeName), func() (volume.Mounter, error) {
		spec := row.VolumeSpec
		made, err := plugin.NewMounter(&volume.Spec{Volume: spec.Volume.DeepCopy(), PersistentVolume: spec.PersistentVolume.DeepCopy(), ReadOnly: spec.ReadOnly}, row.Pod)
		if err != nil {
			return nil, err
		}
		return mounter.Query(made)
	})
	if err == nil && made.GetPath() != path {
		err = fmt.Errorf("plugin %q sets the volume up at %q, not at %q: %w", row.PluginName, made.GetPath(), path, errDisagree)
	}
	return made, err
}

// reuse makes a volume that was found mounted count as set up for a pod.
func (a *actualState) reuse(row *operationexecutor.VolumeToMount, mounter volume.Mounter, path string) error {
	defer a.changes.Notify(row.PodName)
	return a.ActualStateOfWorld.MarkVolumeAsMounted(operationexecutor.MarkVolumeOpts{
		VolumeName: row.VolumeName, PodName: row.PodName, PodUID: row.Pod.UID, Pod: row.Pod, VolumeSpec: row.VolumeSpec,
		OuterVolumeSpecNames: row.OuterVolumeSpecNames, Mounter: mounter, MountPath: path, VolumeGidValue: row.VolumeGidValue,
		SELinuxMountContext: row.SELinuxLabel, Incarnation: row.Incarnation,
	})
}

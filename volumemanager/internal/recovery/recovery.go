// Package recovery takes over what an earlier manager left. It reads the records, compares them with the plugins and the
// mount table, enters them into the actual state, rebuilds missing records, and lists the rest as orphans. It knows which
// volumes must not be torn down yet.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
	"github.com/volumekit/volumekit/volumemanager/internal/orphans"
)

// Options is what a [Recovery] needs. All functions are called without a lock.
type Options struct {
	// Plugins are those of the manager.
	Plugins *volume.VolumePluginMgr
	// Logger logs findings and failures.
	Logger *slog.Logger
	// Journal has the records. Without one the recovery finds nothing.
	Journal *journal.Journal
	// Mounts is the mount table. Without one the recovery does not compare the records with it.
	Mounts journal.Table
	// Watch gets the recorded mounts that are still there.
	Watch *mountwatch.Watch
	// Orphans lists what has no record. If RemoveOrphans is true, orphans are removed.
	Orphans       *orphans.List
	RemoveOrphans bool
	// Actual is the actual state of the world.
	Actual *cache.ActualStateOfWorld
	// Reconstruct calls a plugin to identify the volume at a path.
	Reconstruct func(ctx context.Context, ask operationexecutor.VolumeToReconstruct) (volume.ReconstructedVolume, error)
	// AttachesItself says that this node attaches its volumes itself, without a controller.
	AttachesItself bool
	// IsKnown reports whether a pod is on this node; IsBusy, whether an operation for it runs.
	IsKnown, IsBusy func(volume.UniquePodName) bool
	// Plan plans volumes again. PlanAll plans all of them.
	Plan    func([]v1.UniqueVolumeName)
	PlanAll func()
	// Notify wakes the callers that wait for a pod.
	Notify func(volume.UniquePodName)
	// InUseChanged is called when the set of volumes in use may have changed.
	InUseChanged func()
}

// Recovery holds what a start has found. Make it with [New].
type Recovery struct {
	*proofs

	options Options
	// read is closed when the records were read. known is closed later, when everything without a record was rebuilt or is
	// listed as an orphan. Both are nil if the manager keeps no records.
	read, known chan struct{}
	// complete is closed when all pods have been added.
	complete chan struct{}
	// mounts is the mount table at the start. It is set before any goroutine runs, and dropped after the search for orphans.
	mounts mountsFound
	// reused counts the set-ups that pods use as they were found.
	reused atomic.Uint64

	mu sync.Mutex
	// isRead says that the records were read. While rebuilding is true, unknown volumes may be on the node: no volume is
	// unstaged or detached.
	isRead, rebuilding, podsComplete bool
	// adopted holds the volumes that were found. It is cleared when all pods have been added.
	adopted map[v1.UniqueVolumeName]struct{}
	// removed holds the pods that were removed before all pods had been added, and that may have volumes from before the
	// restart. The value is the count of removals by then; it tells one removal of a pod from a later one.
	removed  map[volume.UniquePodName]uint64
	removals uint64
	// removedEarly holds the pods that were removed before everything left by an earlier manager was known. A set-up that is
	// found later belongs to the removed pod, not to one that was added since with the same UID.
	removedEarly map[volume.UniquePodName]struct{}
	// dirsAfterRead holds the pods that were removed before the records were read. Some of their directories may still be there.
	dirsAfterRead map[volume.UniquePodName]struct{}
	// damaged holds the records that cannot be used, aside those that earlier starts have moved aside. rebuilt counts the volumes
	// whose records were missing and have been rebuilt.
	damaged, aside []record.Damaged
	rebuilt        int
}

// New returns a recovery that has found nothing yet. It does no I/O.
func New(o Options) *Recovery {
	r := &Recovery{
		proofs: newProofs(o.Plugins), options: o, complete: make(chan struct{}), adopted: make(map[v1.UniqueVolumeName]struct{}),
		removed: make(map[volume.UniquePodName]uint64), removedEarly: make(map[volume.UniquePodName]struct{}), dirsAfterRead: make(map[volume.UniquePodName]struct{}),
	}
	if o.Journal != nil {
		r.read, r.known, r.rebuilding = make(chan struct{}), make(chan struct{}), true
	}
	return r
}

// RecordsRead returns a channel that is closed when the records were read. Anything that is not known by then has no record.
// The channel is nil if the manager keeps no records.
func (r *Recovery) RecordsRead() <-chan struct{} { return r.read }

// AllKnown returns a channel that is closed when everything without a record was rebuilt, or is listed as an orphan. It is
// nil if the manager keeps no records.
func (r *Recovery) AllKnown() <-chan struct{} { return r.known }

// PodsComplete notes that all pods have been added. Volumes that none of them wants may be torn down from now on.
func (r *Recovery) PodsComplete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.podsComplete {
		close(r.complete)
	}
	r.podsComplete = true
	clear(r.removed)
	clear(r.adopted)
}

// ArePodsComplete reports whether all pods have been added.
func (r *Recovery) ArePodsComplete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.podsComplete
}

// IsComplete reports whether all pods have been added and everything that an earlier manager left is known. While a record
// is damaged it is false.
func (r *Recovery) IsComplete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.podsComplete && !r.rebuilding && len(r.damaged) == 0
}

// AwaitsPods reports whether the manager keeps volumes of an earlier manager because some pods may still be added.
func (r *Recovery) AwaitsPods() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.podsComplete && len(r.adopted) > 0
}

// MayBeWanted reports whether a pod that is not known yet may use a volume.
func (r *Recovery) MayBeWanted(name v1.UniqueVolumeName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, adopted := r.adopted[name]
	return adopted || r.rebuilding
}

// Damaged returns the records that cannot be used.
func (r *Recovery) Damaged() []record.Damaged {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.damaged
}

// Aside returns the records that earlier starts have moved aside, and that are still there.
func (r *Recovery) Aside() []record.Damaged {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.aside
}

// Rebuilt returns how many volumes were rebuilt because their records were missing.
func (r *Recovery) Rebuilt() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rebuilt
}

// Reused returns how many set-ups pods use as they were found.
func (r *Recovery) Reused() uint64 { return r.reused.Load() }

// Read locks and reads the records of an earlier manager, and enters them into the actual state as uncertain. It calls no
// plugin method that does I/O, and touches no mount. If it fails, the records are not locked.
func (r *Recovery) Read(ctx context.Context) error {
	if r.options.Journal == nil {
		r.endRead() //nolint:contextcheck // The removal of empty directories has no context.
		return nil
	}
	if err := r.options.Journal.Open(); err != nil {
		return err
	}
	if err := r.readRecords(ctx); err != nil {
		return errors.Join(err, r.options.Journal.Close(ctx))
	}
	r.endRead() //nolint:contextcheck // The removal of empty directories has no context.
	close(r.read)
	if !r.options.Journal.HasMarks() || !r.mustRebuild() {
		r.endRebuild()
	}
	return nil
}

func (r *Recovery) readRecords(ctx context.Context) error {
	aside, err := r.options.Journal.Aside()
	if err != nil {
		r.options.Logger.Error("records that earlier starts have moved aside cannot be listed", "error", err)
	}
	found, damaged, err := r.options.Journal.Load(r.proofs.checkLoaded)
	if err != nil {
		return err
	}
	for _, d := range damaged {
		r.options.Logger.Error("a record cannot be used; what it stands for is not known and is left alone", "path", d.Path, "error", d.Err)
	}
	if r.mounts, err = r.compareMounts(ctx, found); err != nil {
		r.options.Logger.Error("the mount table could not be compared with the records", "error", err)
	}
	for _, v := range found {
		if v.Unproven {
			r.proofs.add(v)
		}
	}
	r.mu.Lock()
	r.damaged, r.aside = damaged, aside
	r.mu.Unlock()
	return r.adoptAll(found)
}

// adoptAll enters the volumes that were found into the actual state, and plans them. None of them is torn down before all
// pods have been added.
func (r *Recovery) adoptAll(found []journal.Found) error {
	names := make([]v1.UniqueVolumeName, 0, len(found))
	for _, v := range found {
		if err := r.adopt(v); err != nil {
			return err
		}
		names = append(names, v.Record.Volume)
	}
	r.mu.Lock()
	for _, name := range names {
		if !r.podsComplete {
			r.adopted[name] = struct{}{}
		}
	}
	r.mu.Unlock()
	r.options.Plan(names)
	return nil
}

// adopt enters a record into the actual state.
func (r *Recovery) adopt(of journal.Found) error {
	v, spec := of.Record, of.Spec
	found := operationexecutor.AttachedVolume{
		VolumeName: v.Volume, VolumeSpec: spec, PluginName: v.Plugin,
		PluginIsAttachable: v.Attachment != nil, PluginIsDeviceMountable: v.Staging != nil,
	}
	// If the plugin is no longer registered, only the record says what has to be undone.
	if ok, err := r.options.Plugins.IsAttachable(spec); err == nil {
		found.PluginIsAttachable = found.PluginIsAttachable || ok
	}
	if ok, err := r.options.Plugins.IsDeviceMountable(spec); err == nil {
		found.PluginIsDeviceMountable = found.PluginIsDeviceMountable || ok
	}
	if v.Attachment != nil {
		found.DevicePath = v.Attachment.DevicePath
	}
	if v.Staging != nil {
		found.DeviceMountPath, found.SELinuxMountContext = v.Staging.Path, v.Staging.SELinux
		if v.Staging.DevicePath != "" {
			found.DevicePath = v.Staging.DevicePath
		}
	}
	if err := r.options.Actual.AddReconstructedVolume(found); err != nil {
		return fmt.Errorf("record of volume %q: %w", v.Volume, err)
	}
	for _, uid := range slices.Sorted(maps.Keys(v.Pods)) {
		p := v.Pods[uid]
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: uid}}
		_, err := r.options.Actual.AddReconstructedPod(operationexecutor.MountedVolume{
			VolumeName: v.Volume, PodName: volume.GetUniquePodName(pod), PodUID: uid, Pod: pod,
			VolumeSpec: of.SpecOf(uid), OuterVolumeSpecNames: p.OuterNames, MountPath: p.Path,
			SELinuxMountContext: p.SELinux,
		})
		if err != nil {
			return fmt.Errorf("record of volume %q and pod %q: %w", v.Volume, uid, err)
		}
		if r.wasRemovedEarly(volume.UniquePodName(uid)) {
			r.options.Actual.MarkPodRemoved(volume.UniquePodName(uid))
		}
	}
	return nil
}

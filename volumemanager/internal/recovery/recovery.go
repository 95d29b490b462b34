// Package recovery has what a start finds of an earlier manager: it reads the records, compares them with the plugins and the mount
// table, makes them the actual state, rebuilds what is on no record, and lists the rest as orphans. It knows which of that may not be
// undone yet.
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
	// Logger gets what is found, and what fails.
	Logger *slog.Logger
	// Journal has the records; nil: there are none, and nothing is found.
	Journal *journal.Journal
	// Mounts is the mount table; nil: the records are not compared with it.
	Mounts journal.Table
	// Watch learns which mounts of the records are there.
	Watch *mountwatch.Watch
	// Orphans lists what is on no record. RemoveOrphans says that it is removed.
	Orphans       *orphans.List
	RemoveOrphans bool
	// Actual is the actual state of the world.
	Actual *cache.ActualStateOfWorld
	// Reconstruct asks a plugin which volume is at a path.
	Reconstruct func(ctx context.Context, ask operationexecutor.VolumeToReconstruct) (volume.ReconstructedVolume, error)
	// AttachesItself says that this node attaches its volumes, and no controller.
	AttachesItself bool
	// IsKnown reports whether a pod is on this node, IsBusy whether an operation for it runs.
	IsKnown, IsBusy func(volume.UniquePodName) bool
	// Look has volumes planned, LookAtAll all of them.
	Look      func([]v1.UniqueVolumeName)
	LookAtAll func()
	// Notify wakes those who wait for a pod.
	Notify func(volume.UniquePodName)
	// InUseChanged is called when what the node uses is known better.
	InUseChanged func()
}

// Recovery is what a start has found. Make it with [New].
type Recovery struct {
	options Options
	// read is closed when the records were read, known after that, when what is on no record was rebuilt or is listed as an orphan.
	// Both are nil without records.
	read, known chan struct{}
	// complete is closed when all pods have been added.
	complete chan struct{}
	// mounts is the mount table as it was at the start. It is set before anything runs, and lives until it was looked at.
	mounts mountsFound
	// reused is how many set-ups pods use as they were found.
	reused atomic.Uint64

	mu sync.Mutex
	// isRead says that the records were read, rebuilding that volumes may be here that are not known yet: nothing is unstaged or
	// detached until they are.
	isRead, rebuilding, podsComplete bool
	// adopted holds the volumes that were found, until all pods have been added.
	adopted map[v1.UniqueVolumeName]struct{}
	// unproven are the records that are still to be compared with their plugins.
	unproven map[v1.UniqueVolumeName]journal.Found
	// released holds pods that were removed before all had been added, and of which a restart may have left volumes; each
	// with the count of removals by then, which tells one removal from a later one.
	released map[volume.UniquePodName]uint64
	removals uint64
	// outlived holds pods that were removed before all that a restart left was known: what is found of them later is for no
	// pod that was added with the same UID since.
	outlived map[volume.UniquePodName]struct{}
	// unswept are the pods that were removed before the records were read, of which directories may be left.
	unswept map[volume.UniquePodName]struct{}
	// damaged are the records that could not be used. rebuilt is how many volumes were rebuilt for want of records.
	damaged []record.Damaged
	rebuilt int
}

// New returns a recovery that has found nothing yet. It does no I/O.
func New(o Options) *Recovery {
	r := &Recovery{
		options: o, complete: make(chan struct{}),
		adopted: make(map[v1.UniqueVolumeName]struct{}), unproven: make(map[v1.UniqueVolumeName]journal.Found),
		released: make(map[volume.UniquePodName]uint64), outlived: make(map[volume.UniquePodName]struct{}), unswept: make(map[volume.UniquePodName]struct{}),
	}
	if o.Journal != nil {
		r.read, r.known, r.rebuilding = make(chan struct{}), make(chan struct{}), true
	}
	return r
}

// RecordsRead returns a channel that is closed when the records were read: what is not known then is on no record. It is nil without
// records.
func (r *Recovery) RecordsRead() <-chan struct{} { return r.read }

// AllKnown returns a channel that is closed when what is on no record was rebuilt, or is listed as an orphan. It is nil without
// records.
func (r *Recovery) AllKnown() <-chan struct{} { return r.known }

// PodsComplete says that all pods have been added: what belongs to none of them may be undone.
func (r *Recovery) PodsComplete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.podsComplete {
		close(r.complete)
	}
	r.podsComplete = true
	clear(r.released)
	clear(r.adopted)
}

// ArePodsComplete reports whether all pods have been added.
func (r *Recovery) ArePodsComplete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.podsComplete
}

// IsComplete reports whether all pods have been added and all that an earlier manager left is known.
func (r *Recovery) IsComplete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.podsComplete && !r.rebuilding && len(r.damaged) == 0
}

// AwaitsPods reports whether volumes of an earlier manager stay because not all pods have been added.
func (r *Recovery) AwaitsPods() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.podsComplete && len(r.adopted) > 0
}

// MayBeWanted reports whether pods that are not known yet may use a volume.
func (r *Recovery) MayBeWanted(name v1.UniqueVolumeName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, adopted := r.adopted[name]
	return adopted || r.rebuilding
}

// Damaged returns the records that could not be used.
func (r *Recovery) Damaged() []record.Damaged {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.damaged
}

// Rebuilt returns how many volumes were rebuilt for want of records.
func (r *Recovery) Rebuilt() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rebuilt
}

// Reused returns how many set-ups pods use as they were found.
func (r *Recovery) Reused() uint64 { return r.reused.Load() }

// Read locks and reads the records of an earlier manager, and makes them the actual state: every part of it uncertain. It calls no
// method of a plugin that does I/O, and touches no mount. After an error the records are not locked.
func (r *Recovery) Read(ctx context.Context) error {
	if r.options.Journal == nil {
		r.endRead()
		return nil
	}
	if err := r.options.Journal.Open(); err != nil {
		return err
	}
	if err := r.readRecords(ctx); err != nil {
		return errors.Join(err, r.options.Journal.Close(ctx))
	}
	r.endRead()
	close(r.read)
	if !r.options.Journal.HasMarks() || !r.mustRebuild() {
		r.endRebuild()
	}
	return nil
}

func (r *Recovery) readRecords(ctx context.Context) error {
	found, damaged, err := r.options.Journal.Load(r.judge)
	if err != nil {
		return err
	}
	for _, d := range damaged {
		r.options.Logger.Error("a record cannot be used; what it stands for is not known and is left alone", "path", d.Path, "error", d.Err)
	}
	if r.mounts, err = r.compareMounts(ctx, found); err != nil {
		r.options.Logger.Error("the mount table could not be compared with the records", "error", err)
	}
	r.mu.Lock()
	r.damaged = damaged
	for _, v := range found {
		if v.Unproven {
			r.unproven[v.Record.Volume] = v
		}
	}
	r.mu.Unlock()
	return r.adoptAll(found)
}

// adoptAll makes what was found a part of the actual state, and has it planned. Nothing of it is undone before all pods
// are known.
func (r *Recovery) adoptAll(found []journal.Found) error {
	names := make([]v1.UniqueVolumeName, 0, len(found))
	for _, v := range found {
		if err := r.adopt(v.Record, v.Spec); err != nil {
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
	r.options.Look(names)
	return nil
}

// adopt makes a record a part of the actual state.
func (r *Recovery) adopt(v journal.Record, spec *volume.Spec) error {
	found := cache.ReconstructedVolume{
		VolumeName: v.Volume, VolumeSpec: spec, PluginName: v.Plugin,
		PluginIsAttachable: v.Attachment != nil, PluginIsDeviceMountable: v.Staging != nil,
	}
	// A plugin that is not registered any more answers nothing; the record then says what there is to undo.
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
		_, err := r.options.Actual.AddReconstructedPod(operationexecutor.MarkVolumeOpts{
			VolumeName: v.Volume, PodName: volume.GetUniquePodName(pod), PodUID: uid, Pod: pod,
			VolumeSpec: spec, OuterVolumeSpecNames: p.OuterNames, MountPath: p.Path,
			SELinuxMountContext: p.SELinux,
		})
		if err != nil {
			return fmt.Errorf("record of volume %q and pod %q: %w", v.Volume, uid, err)
		}
		if r.isOutlived(volume.UniquePodName(uid)) {
			r.options.Actual.MarkPodRemoved(volume.UniquePodName(uid))
		}
	}
	return nil
}

package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/orphans"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
	"github.com/volumekit/volumekit/volumemanager/internal/pluginpaths"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// This file handles everything under the root that has no record. If records are missing, it asks the plugins and rebuilds
// the records. Otherwise it reports orphans, and removes them if that is allowed.

// Run rebuilds missing records and lists orphans. After all pods have been added it removes the orphans that may be removed.
// It returns when nothing is left to remove, or when ctx ends.
func (r *Recovery) Run(ctx context.Context) {
	unrecorded, ok := r.lookForOrphans(ctx)
	if !ok || !r.options.RemoveOrphans {
		return
	}
	select {
	case <-r.complete:
	case <-ctx.Done():
		return
	}
	list := r.options.Orphans
	rest := list.Remove(ctx, unrecorded)
	list.Report(append(rest, list.RemoveEmptyPods(ctx, unrecorded, rest)...))
	for failures := 1; list.HasInUse() && ctx.Err() == nil; failures++ {
		retry.Pause(ctx, retry.After(failures))
		list.RemoveInUse(ctx)
	}
}

// lookForOrphans rebuilds missing records, lists orphans, and releases everything that waits for this. It returns false if
// the directory of records cannot be marked: such a directory counts as complete, and nothing is without a record.
func (r *Recovery) lookForOrphans(ctx context.Context) (unrecorded []orphans.Orphan, ok bool) {
	defer close(r.known)
	defer r.endRebuild()
	defer r.options.Journal.EndStart()
	if !r.options.Journal.HasMarks() {
		return nil, false
	}
	b := rebuilder{options: r.options, proofs: r.proofs, mounts: r.mounts}
	r.mounts = mountsFound{}
	unrecorded, err := b.findUnrecorded(ctx)
	if err != nil {
		r.options.Logger.Error("what lies under the root and is on no record is not known", "error", err)
	}
	if r.mustRebuild() {
		built, rest := b.rebuild(ctx, unrecorded)
		unrecorded = r.adoptRebuilt(ctx, built, rest)
	}
	r.endRebuild()
	if err == nil && ctx.Err() == nil {
		if err := r.options.Journal.MarkComplete(); err != nil {
			r.options.Logger.Warn("the records could not be marked as complete: the next start looks at the disk again", "error", err)
		}
	}
	r.options.Orphans.Report(unrecorded)
	return unrecorded, true
}

// mustRebuild reports whether records are missing. A mount or directory without a record may then be an earlier manager's.
func (r *Recovery) mustRebuild() bool {
	return !r.options.Journal.IsComplete() || len(r.Damaged()) > 0
}

// rebuilder finds what lies under the root without a record, and makes the missing records.
type rebuilder struct {
	options Options
	proofs  *proofs
	// mounts is the mount table at the start.
	mounts mountsFound
}

// findUnrecorded returns the mounts, directories and devices that have had no record at any time since the start. It lists
// them first and reads the records after that: the records then hold everything that this manager has begun meanwhile, and
// everything that it has torn down.
func (b *rebuilder) findUnrecorded(ctx context.Context) ([]orphans.Orphan, error) {
	host := b.options.Plugins.Host()
	dirs, err := orphans.VolumeDirs(ctx, host)
	staged, stagedErr := orphans.StagingDirs(host)
	devices, devicesErr := b.options.Orphans.LoopDevices(ctx)
	recorded := b.options.Journal.EndStart()
	empty, emptyErr := b.options.Orphans.EmptyPods(dirs, recorded.Paths, b.mounts.table)
	err = errors.Join(err, stagedErr, devicesErr, emptyErr)
	used := paths.WithParents(maps.Keys(recorded.Paths))
	unrecorded := orphans.Mounts(b.mounts.table, host, recorded.Paths)
	mounted := make(map[string]int, len(unrecorded))
	for i, o := range unrecorded {
		mounted[o.Path] = i
	}
	for _, d := range dirs {
		if _, ok := recorded.Paths[d.Path]; ok {
			continue
		}
		if i, ok := mounted[d.Path]; ok {
			unrecorded[i].Dir = d
			continue
		}
		unrecorded = append(unrecorded, orphans.Orphan{Path: d.Path, PodUID: d.UID, Dir: d})
	}
	for _, path := range staged {
		_, isMounted := mounted[path]
		if _, isUsed := used[path]; !isMounted && !isUsed {
			unrecorded = append(unrecorded, orphans.Orphan{Path: path})
		}
	}
	unrecorded = append(unrecorded, empty...)
	return append(unrecorded, b.options.Orphans.Devices(devices, b.mounts.table, recorded.Accounts)...), err
}

// rebuild identifies the volumes that were found, from the remaining records and by calls of the plugins. It returns them, and
// what it could not identify.
func (b *rebuilder) rebuild(ctx context.Context, unrecorded []orphans.Orphan) (built []journal.Found, rest []orphans.Orphan) {
	attached := attachedIn(b.options.Journal)
	built = b.rebuildStagings(attached)
	unresponsive := make(map[string]error)
	for _, o := range unrecorded {
		if o.Dir.Path == "" {
			rest = append(rest, o)
			continue
		}
		if o.Err = b.checkCanBeOurs(o); o.Err != nil {
			rest = append(rest, o)
			continue
		}
		err := unresponsive[o.Dir.Plugin]
		var v journal.Found
		if spec := attached.specOf(o.Dir); spec != nil {
			v, err = b.foundOf(o, volume.ReconstructedVolume{Spec: spec})
		} else if err == nil {
			v, err = b.rebuildOne(ctx, o)
		}
		if err == nil {
			built = append(built, v)
			continue
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, volume.ErrUncertain) {
			unresponsive[o.Dir.Plugin] = err // The next call of this plugin would take as long.
		}
		o.Err = err
		rest = append(rest, o)
	}
	return built, rest
}

// adoptRebuilt enters the volumes that were rebuilt into the actual state as uncertain, and writes their records. It returns
// the rest without what these records contain.
func (r *Recovery) adoptRebuilt(ctx context.Context, built []journal.Found, rest []orphans.Orphan) []orphans.Orphan {
	if len(built) == 0 {
		return rest
	}
	r.options.Logger.Warn("records were missing: volumes were rebuilt from what lies under the root", "volumes", len(built), "notRebuilt", len(rest))
	// All volumes enter the actual state at once: none is unstaged before all of its pods are known.
	for _, v := range built {
		if err := r.options.Journal.Adopt(ctx, v.Record); err != nil {
			r.options.Logger.Warn("a volume that was rebuilt could not be recorded", "volume", v.Record.Volume, "error", err)
		}
	}
	if err := r.adoptAll(built); err != nil {
		r.options.Logger.Error("a volume that was rebuilt is not known", "error", err)
	}
	r.mu.Lock()
	r.rebuilt = len(built)
	r.mu.Unlock()
	return r.withoutRecorded(rest)
}

// checkCanBeOurs refuses what cannot be a volume that a manager has set up: a file, or anything inside a mount that no
// manager makes. The error matches owned.ErrUnproven.
func (b *rebuilder) checkCanBeOurs(o orphans.Orphan) error {
	pods := b.options.Plugins.Host().GetPodsDir()
	for above := filepath.Dir(o.Path); above != pods && paths.IsAtOrBeneath(above, pods); above = filepath.Dir(above) {
		if at, ok := b.mounts.top[above]; ok {
			return fmt.Errorf("%q lies in a mount of %s %q at %q, which no manager makes: unmount that: %w",
				o.Path, b.mounts.table[at].FSType, b.mounts.table[at].Source, above, owned.ErrUnproven)
		}
	}
	if o.Mounted || o.Dir.Block {
		return nil
	}
	info, err := os.Lstat(o.Path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%q is a file, and no volume: look whose it is, and move it away: %w", o.Path, owned.ErrUnproven)
	}
	return err
}

// withoutRecorded leaves out everything that has a record by now: the stagings and devices of rebuilt volumes.
func (r *Recovery) withoutRecorded(found []orphans.Orphan) []orphans.Orphan {
	if len(found) == 0 {
		return nil
	}
	recorded := r.options.Journal.Recorded()
	return slices.DeleteFunc(found, func(o orphans.Orphan) bool {
		return paths.IsAtOrBeneathAny(o.Path, recorded.Paths) || o.BackingFile != "" && recorded.Accounts(o.Device)
	})
}

// Orphans returns everything without a record. A volume that was rebuilt is no longer an orphan.
func (r *Recovery) Orphans() []orphans.Orphan {
	return r.withoutRecorded(slices.Clone(r.options.Orphans.All()))
}

// endRebuild is called when all volumes are known that can be known. It plans the volumes that were left alone until then.
func (r *Recovery) endRebuild() {
	r.mu.Lock()
	ended := r.rebuilding
	r.rebuilding = false
	clear(r.removedEarly)
	r.mu.Unlock()
	if !ended {
		return
	}
	r.options.PlanAll()
	r.options.InUseChanged()
}

// rebuildOne asks the plugin which volume it finds, and makes the missing record.
func (b *rebuilder) rebuildOne(ctx context.Context, o orphans.Orphan) (journal.Found, error) {
	ask := operationexecutor.VolumeToReconstruct{
		PluginName: o.Dir.Plugin, PodUID: o.Dir.UID, InnerVolumeSpecName: o.Dir.Name, VolumePath: o.Dir.Path,
	}
	if o.Dir.Block {
		ask.VolumeMode = v1.PersistentVolumeBlock
	}
	answer, err := b.options.Reconstruct(ctx, ask)
	if err != nil {
		return journal.Found{}, err
	}
	return b.foundOf(o, answer)
}

// foundOf makes the record of a volume that was found set up for a pod, and checks it.
func (b *rebuilder) foundOf(o orphans.Orphan, answer volume.ReconstructedVolume) (journal.Found, error) {
	record, err := b.recordOf(o, answer)
	if err != nil {
		return journal.Found{}, fmt.Errorf("volume at %q cannot be rebuilt: %w", o.Path, err)
	}
	return b.check(record)
}

// check returns a record and its spec if it is valid and the plugin computes the same paths from it. Otherwise a teardown
// would work on another path.
func (b *rebuilder) check(record journal.Record) (journal.Found, error) {
	found, err := b.options.Journal.Check(record)
	if err == nil {
		err = b.proofs.compare(found)
	}
	return found, err
}

// recordOf makes the record of a volume that was found set up for a pod.
func (b *rebuilder) recordOf(o orphans.Orphan, answer volume.ReconstructedVolume) (journal.Record, error) {
	spec, uid := answer.Spec, o.Dir.UID
	name, err := b.options.Plugins.UniqueVolumeName(volume.UniquePodName(uid), spec)
	if err != nil {
		return journal.Record{}, err
	}
	record, err := b.options.Journal.NewRecord(name, o.Dir.Plugin, spec)
	if err != nil {
		return record, err
	}
	// With a controller the record has no attachment. The controller considers the volume attached until it has detached it
	// itself; if the node detached the volume, no controller would attach it again.
	if ok, err := b.options.Plugins.IsAttachable(spec); b.options.AttachesItself && (err != nil || ok) {
		record.Attachment = &journal.Attachment{Node: b.options.Plugins.Host().GetNodeName()}
	}
	staged, err := pluginpaths.Staging(b.options.Plugins, spec)
	if err != nil {
		return record, err
	}
	if staged != "" {
		record.Staging = &journal.Staging{Path: staged, SELinux: answer.SELinuxMountContext, Mount: b.mounts.recordAt(staged)}
	}
	setUp := &journal.SetUp{OuterNames: []string{spec.Name()}, Path: o.Path, SELinux: answer.SELinuxMountContext}
	if o.Mounted {
		setUp.Mount = journal.MountOfIdentity(o.Identity)
	}
	record.Pods = map[types.UID]*journal.SetUp{uid: setUp}
	return record, nil
}

package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/orphans"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// This file deals with what lies under the root and is on no record: it is rebuilt through its plugin where records are
// missing, and told of, and perhaps removed, where they are not.

// knownMark marks a directory of records that says all there is. It is missing from a new one, as after the loss of the
// records or, in a tmpfs, after a reboot, until what is on the disk has been looked at.
const knownMark = "known"

// marker is what a directory of records can be marked with; a [*record.Dir] is one.
type marker interface {
	Mark(name string) error
	IsMarked(name string) bool
}

// lookForOrphans finds what is on no record, in the background, and removes what may be removed once all pods are known.
func (m *Manager) lookForOrphans(ctx context.Context) {
	known := sync.OnceFunc(func() { close(m.allKnown) })
	defer known()
	defer m.endRebuild()
	defer m.journal.endTrace()
	marks, ok := m.journal.runtime.(marker)
	if !ok {
		return
	}
	unrecorded, err := m.findUnrecorded(ctx)
	if err != nil {
		m.options.Logger.Error("what lies under the root and is on no record is not known", "error", err)
	}
	if m.mustRebuild(marks) {
		unrecorded = m.rebuild(ctx, unrecorded)
	}
	m.found = mountsFound{}
	m.endRebuild()
	if err == nil && ctx.Err() == nil && !marks.IsMarked(knownMark) {
		if err := marks.Mark(knownMark); err != nil {
			m.options.Logger.Warn("the records could not be marked as complete: the next start looks at the disk again", "error", err)
		}
	}
	m.orphans.Report(unrecorded)
	known()
	select {
	case <-m.completed:
	case <-ctx.Done():
		return
	}
	if m.options.Orphans != OrphansAreRemoved {
		return
	}
	rest := m.orphans.Remove(ctx, unrecorded)
	m.orphans.Report(append(rest, m.orphans.RemoveEmptyPods(ctx, unrecorded, rest)...))
	for failures := 1; m.orphans.HasInUse() && ctx.Err() == nil; failures++ {
		retry.Pause(ctx, retry.After(failures))
		m.orphans.RemoveInUse(ctx)
	}
}

// mustRebuild reports whether records are missing, so that what is on none may be of an earlier manager.
func (m *Manager) mustRebuild(marks marker) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !marks.IsMarked(knownMark) || len(m.damaged) > 0
}

// findUnrecorded returns all mounts, directories and devices that were on no record since the start. The trace of the records
// ends after they were listed: what this manager has begun meanwhile is on it, and so is what it has torn down.
func (m *Manager) findUnrecorded(ctx context.Context) ([]orphans.Orphan, error) {
	host := m.plugins.Host()
	dirs, err := orphans.VolumeDirs(ctx, host)
	staged, stagedErr := orphans.StagingDirs(host)
	devices, devicesErr := m.orphans.LoopDevices(ctx)
	trace := m.journal.endTrace()
	empty, emptyErr := m.orphans.EmptyPods(dirs, trace.paths, m.found.table)
	err = errors.Join(err, stagedErr, devicesErr, emptyErr)
	recorded, used := trace.paths, paths.WithParents(maps.Keys(trace.paths))
	unrecorded := orphans.Mounts(m.found.table, host, recorded)
	mounted := make(map[string]int, len(unrecorded))
	for i, o := range unrecorded {
		mounted[o.Path] = i
	}
	for _, d := range dirs {
		if _, ok := recorded[d.Path]; ok {
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
	return append(unrecorded, m.orphans.Devices(devices, m.found.table, trace.devices.account)...), err
}

// rebuild learns what volumes it is that were found: from the records that are left, and from the plugins. It takes those
// that are known into the actual state, uncertain, and on record, and returns the rest.
func (m *Manager) rebuild(ctx context.Context, unrecorded []orphans.Orphan) []orphans.Orphan {
	recorded := m.journal.shared()
	built := m.rebuildStagings(recorded)
	var rest []orphans.Orphan
	silent := make(map[string]error)
	for _, o := range unrecorded {
		if o.Dir.Path == "" {
			rest = append(rest, o)
			continue
		}
		if o.Err = m.checkCanBeOurs(o); o.Err != nil {
			rest = append(rest, o)
			continue
		}
		err := silent[o.Dir.Plugin]
		var v foundVolume
		if spec := recorded.specOf(o.Dir); spec != nil {
			v, err = m.foundOf(o, volume.ReconstructedVolume{Spec: spec})
		} else if err == nil {
			v, err = m.rebuildOne(ctx, o)
		}
		if err == nil {
			built = append(built, v)
			continue
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, volume.ErrUncertain) {
			silent[o.Dir.Plugin] = err // It is not asked about the next, which would take as long.
		}
		o.Err = err
		rest = append(rest, o)
	}
	if len(built) == 0 {
		return rest
	}
	m.options.Logger.Warn("records were missing: volumes were rebuilt from what lies under the root", "volumes", len(built), "not rebuilt", len(rest))
	// All at once: a volume is not unstaged while one of its pods is not known yet.
	for _, v := range built {
		if err := m.journal.adopt(ctx, v.record); err != nil {
			m.options.Logger.Warn("a volume that was rebuilt could not be recorded", "volume", v.record.Volume, "error", err)
		}
	}
	if err := m.adoptAll(built); err != nil {
		m.options.Logger.Error("a volume that was rebuilt is not known", "error", err)
	}
	m.mu.Lock()
	m.rebuilt = len(built)
	m.mu.Unlock()
	rest = withoutRecordedDevices(rest, m.journal.recordedDevices())
	return withoutRecorded(rest, m.journal.recordedPaths())
}

// checkCanBeOurs returns an error that matches owned.ErrUnproven when what was found cannot be a volume that a manager has set up: a
// mount that no manager makes shows it, or it is a file.
func (m *Manager) checkCanBeOurs(o orphans.Orphan) error {
	pods := m.plugins.Host().GetPodsDir()
	for above := filepath.Dir(o.Path); above != pods && paths.IsAtOrBeneath(above, pods); above = filepath.Dir(above) {
		if at, ok := m.found.top[above]; ok {
			return fmt.Errorf("%q lies in a mount of %s %q at %q, which no manager makes: unmount that: %w",
				o.Path, m.found.table[at].FSType, m.found.table[at].Source, above, owned.ErrUnproven)
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

// withoutRecorded leaves out what has come on record: the stagings of volumes that were rebuilt.
func withoutRecorded(found []orphans.Orphan, recorded map[string]struct{}) []orphans.Orphan {
	return slices.DeleteFunc(found, func(o orphans.Orphan) bool { return paths.IsAtOrBeneathAny(o.Path, recorded) })
}

// beginRebuild ends the rebuild before anything is planned where nothing is missing.
func (m *Manager) beginRebuild() {
	if marks, ok := m.journal.runtime.(marker); !ok || !m.mustRebuild(marks) {
		m.endRebuild()
	}
}

// endRebuild is called once all is known that there is to know of volumes. What was left alone until then is planned.
func (m *Manager) endRebuild() {
	m.mu.Lock()
	ended := m.rebuilding
	m.rebuilding = false
	clear(m.outlived)
	m.mu.Unlock()
	if !ended {
		return
	}
	m.volumes.AddAll(m.allVolumes())
	m.exchange.podsComplete()
}

// rebuildOne asks the plugin what volume it is that was found, and makes the record that there should have been.
func (m *Manager) rebuildOne(ctx context.Context, o orphans.Orphan) (foundVolume, error) {
	ask := operationexecutor.VolumeToReconstruct{
		PluginName: o.Dir.Plugin, PodUID: o.Dir.UID, InnerVolumeSpecName: o.Dir.Name, VolumePath: o.Dir.Path,
	}
	if o.Dir.Block {
		ask.VolumeMode = v1.PersistentVolumeBlock
	}
	answer, err := m.executor.ReconstructVolume(ctx, ask)
	if err != nil {
		return foundVolume{}, err
	}
	return m.foundOf(o, answer)
}

// foundOf makes the record of a volume that was found set up for a pod, and checks it.
func (m *Manager) foundOf(o orphans.Orphan, answer volume.ReconstructedVolume) (foundVolume, error) {
	r, err := m.recordOf(o, answer)
	if err != nil {
		return foundVolume{}, fmt.Errorf("volume at %q cannot be rebuilt: %w", o.Path, err)
	}
	spec, err := r.check(string(r.Volume), m.plugins.Host())
	if err == nil {
		err = m.agrees(r, spec) // or its teardown would be that of another path
	}
	return foundVolume{record: r, spec: spec}, err
}

// recordOf makes the record of a volume that was found set up for a pod.
func (m *Manager) recordOf(o orphans.Orphan, answer volume.ReconstructedVolume) (r volumeRecord, err error) {
	spec, uid := answer.Spec, o.Dir.UID
	r = volumeRecord{Version: recordVersion, BootID: m.journal.bootID, Plugin: o.Dir.Plugin}
	if r.Volume, err = m.plugins.UniqueVolumeName(volume.UniquePodName(uid), spec); err != nil {
		return r, err
	}
	if r.Spec, err = encodeSpec(spec, m.plugins.PublicKeys(r.Plugin)); err != nil {
		return r, err
	}
	// What a controller attaches it detaches, too: it believes it attached until it has, and nobody would attach it again.
	if ok, err := m.plugins.IsAttachable(spec); m.exchange == nil && (err != nil || ok) {
		r.Attachment = &attachmentRecord{Node: m.node()}
	}
	staged, err := m.stagingOf(spec)
	if err != nil {
		return r, err
	}
	if staged != "" {
		r.Staging = &stagingRecord{Path: staged, SELinux: answer.SELinuxMountContext, Mount: m.found.recordAt(staged)}
	}
	p := &setUpRecord{OuterNames: []string{spec.Name()}, Path: o.Path, SELinux: answer.SELinuxMountContext}
	if o.Mounted {
		p.Mount = mountRecordOfIdentity(o.Identity)
	}
	r.Pods = map[types.UID]*setUpRecord{uid: p}
	return r, nil
}

// stagingOf asks the plugin where the volume is staged, or where its devices are bound; empty when nowhere. What it calls
// does no I/O, by the plugins' contract.
func (m *Manager) stagingOf(spec *volume.Spec) (path string, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &volume.PanicError{Call: "GetDeviceMountPath or GetGlobalMapPath", Value: value, Stack: debug.Stack()}
		}
	}()
	if isBlock(spec) {
		plugin, err := m.plugins.FindMapperPluginBySpec(spec)
		if err != nil {
			return "", err
		}
		unmapper, err := plugin.NewBlockVolumeUnmapper(spec.Name(), "") // A mapper needs more than is known of what was found.
		if err != nil {
			return "", err
		}
		return unmapper.GetGlobalMapPath(spec)
	}
	if ok, err := m.plugins.IsDeviceMountable(spec); err != nil || !ok {
		return "", err
	}
	plugin, err := m.plugins.FindDeviceMountablePluginBySpec(spec)
	if err != nil {
		return "", err
	}
	mounter, err := plugin.NewDeviceMounter()
	if err != nil {
		return "", err
	}
	return mounter.GetDeviceMountPath(spec)
}

// adopt puts a volume on record that was rebuilt. What is on record of it already counts.
func (j *journal) adopt(ctx context.Context, r volumeRecord) error {
	release, ok := j.turns.Take(ctx.Done(), r.Volume)
	if !ok {
		return context.Cause(ctx)
	}
	defer release()
	r = merge(j.entry(r.Volume).record, r).clone()
	j.withoutOwn(&r)
	at := podvolume.Key{Volume: r.Volume}
	err := j.write(at, r, partAll)
	j.enter(journalEntry{at: at, record: r, stale: err != nil})
	return err
}

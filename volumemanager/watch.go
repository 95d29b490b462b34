package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

const (
	// everyMount is the suspect that stands for all mounts. No path is empty.
	everyMount = ""
	// tablePause is how long the mount table is not read again after it was, where the kernel does not tell which mounts have
	// changed, and how long a mount that was lost is not looked at again, so that a fight with somebody who unmounts it again
	// and again costs little.
	tablePause = time.Second
	// lookTimeout bounds a look at one mount, which asks no filesystem but those above it.
	lookTimeout = 10 * time.Second
)

// lookAfterMounts starts what finds out what others do to our mounts, where [Options].Mounter can tell.
func (m *Manager) lookAfterMounts(ctx context.Context, wg *sync.WaitGroup) {
	kernel, ok := m.options.Mounter.(kernelMounts)
	if !ok {
		return
	}
	wg.Go(func() { m.watchMounts(ctx, kernel) })
	wg.Go(func() { m.examineMounts(ctx, kernel) })
	if m.options.FilesystemLook > 0 {
		wg.Go(func() { m.lookAtFilesystems(ctx, kernel) })
	}
}

// watchMounts is told of changes of the mount table until ctx ends, and finds out which of them are about our mounts. While
// nothing is mounted on the node, it sleeps in the kernel.
func (m *Manager) watchMounts(ctx context.Context, kernel mountWatcher) {
	var read time.Time // when the whole table was last to be read
	err := kernel.Watch(ctx, func(c mount.Change) {
		if c.Whole {
			pause(ctx, time.Until(read.Add(tablePause)))
			read = time.Now()
		}
		m.mountsChanged(c)
	})
	if ctx.Err() == nil {
		m.options.Logger.Error("mounts are not watched: what others do to them is found out at the resync", "error", err)
	}
}

// mountsChanged marks the mounts of ours that a change is, or may be, about.
func (m *Manager) mountsChanged(c mount.Change) {
	for _, id := range c.Detached {
		m.mounts.suspectID(id, m.suspects.Add)
	}
	if len(c.Detached) > 0 {
		m.suspects.AddAll(m.mounts.allHidden())
		m.suspects.AddAll(m.orphansOf(c.Detached))
	}
	if len(c.Detached) > 0 || c.Whole {
		m.orphansChanged() // One of them may be gone.
	}
	for _, mp := range c.Attached {
		m.mountAttached(mp)
	}
	// Options that change together with mounts cannot be told from these: the resync looks for them.
	if c.Whole || c.Options && len(c.Attached)+len(c.Detached) == 0 {
		m.suspects.Add(everyMount)
	}
}

// mountAttached marks what a new mount lies on or hides.
func (m *Manager) mountAttached(mp mount.MountPoint) {
	own := m.mounts.get(mp.Path)
	if own != nil && own.uniqueID != mp.UniqueID || own == nil && m.mayBeOrphan(mp.Path) || m.mounts.directory(mp.Path) != nil {
		m.suspects.Add(mp.Path)
	}
	if m.bearsMounts(mp.Path) {
		m.suspects.Add(everyMount)
	}
}

// bearsMounts reports whether a path lies above the mounts of several volumes: the root directory, what is above it, and the
// directory of a pod.
func (m *Manager) bearsMounts(path string) bool {
	pods, plugins := m.plugins.Host().GetPodsDir(), m.plugins.Host().GetPluginDir("")
	if path == "/" || isAtOrBeneath(pods, path) || isAtOrBeneath(plugins, path) {
		return true
	}
	below, ok := strings.CutPrefix(path, pods+"/")
	return ok && strings.Count(below, "/") < 3 // {pod}/volumes/{plugin}/{volume}
}

func isAtOrBeneath(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// suspectID tells of the mount of ours with the unique id.
func (t *ownMounts) suspectID(id uint64, suspect func(path string)) {
	if own := t.byUniqueID(id); own != nil && !t.isBusy(own.path) {
		suspect(own.path)
	}
}

// lookAtAll looks for what no event tells of: all mounts, and whether those who serve them still answer.
func (m *Manager) lookAtAll() {
	m.suspects.Add(everyMount)
	m.resyncs.Add(1)
	for _, own := range m.mounts.all() {
		m.suspectFilesystem(own)
		if own.Pod != "" {
			m.stats.Probe(own.Key)
		}
	}
}

// volumeMeasured looks at the mount of a volume that was measured, and at its filesystem, for what the kernel says of them.
func (m *Manager) volumeMeasured(path string) {
	if own := m.mounts.get(path); own != nil {
		m.suspects.Add(path)
		m.suspectFilesystem(own)
	}
}

// examineMounts looks at suspects until ctx ends.
func (m *Manager) examineMounts(ctx context.Context, kernel mountLooker) {
	for {
		path, ok := m.suspects.Get(ctx)
		if !ok {
			return
		}
		if path == everyMount {
			m.examineAll(ctx, kernel)
			continue
		}
		m.examine(ctx, kernel, path)
	}
}

// examineAll compares all of our mounts, and the mounts on no record, with the mount table.
func (m *Manager) examineAll(ctx context.Context, kernel mountLooker) {
	all := m.mounts.all()
	if len(all) == 0 && len(m.mounts.allDirectories()) == 0 && m.journal == nil {
		return
	}
	table, err := kernel.List(ctx)
	if err != nil {
		m.options.Logger.Warn("the mount table could not be compared with what is believed", "error", err)
		return
	}
	at, covers := make(map[string]int, len(table)), []int(nil)
	for i := range table {
		at[table[i].Path] = i
		if m.bearsMounts(table[i].Path) {
			covers = append(covers, i)
		}
	}
	for _, own := range all {
		i, ok := at[own.path]
		hidden := slices.ContainsFunc(covers, func(c int) bool { return c > i && isAtOrBeneath(own.path, table[c].Path) })
		if ok && !hidden && own.expect().Is(table[i]) {
			m.assessNow(own, table[i])
			continue
		}
		m.examine(ctx, kernel, own.path)
	}
	m.examineDirectories(ctx, kernel, at)
	m.examineUnknown(ctx, kernel, at)
}

// examine looks at the mount at a path.
func (m *Manager) examine(ctx context.Context, kernel mountLooker, path string) {
	if dir := m.mounts.directory(path); dir != nil {
		m.examineDirectory(ctx, kernel, dir)
		return
	}
	own := m.mounts.get(path)
	if own == nil {
		m.examineOrphan(ctx, kernel, path)
		return
	}
	if m.mounts.isBusy(path) {
		return
	}
	if again := own.lost.Add(tablePause); time.Now().Before(again) {
		m.suspects.AddAt(path, again)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	// What hides it may go while it is looked at.
	m.mounts.hide(path)
	found, err := kernel.Lookup(ctx, path)
	if err == nil && !own.expect().Is(found) {
		err = foreignOn(own, found)
	} else if errors.Is(err, mount.ErrNotMounted) {
		if hiddenErr := hidden(ctx, kernel, own); hiddenErr != nil {
			err = hiddenErr
		}
	}
	if errors.Is(err, mount.ErrForeign) {
		m.health.Report(own.Key, health.Mount, []health.Condition{health.Abnormal(health.MountedOver, err)})
		return
	}
	m.mounts.unhide(path)
	switch {
	case err == nil:
		m.assessNow(own, found)
	case errors.Is(err, mount.ErrNotMounted):
		m.lost(own)
	default:
		m.options.Logger.Warn("a mount could not be looked at", "path", path, "error", err)
	}
}

// assessNow assesses a mount unless an operation has begun to change it since it was looked at.
func (m *Manager) assessNow(own *ownMount, found mount.MountPoint) {
	if m.mounts.get(own.path) == own && !m.mounts.isBusy(own.path) {
		m.assess(own, found)
	}
}

// assess says what is wrong with a mount that is ours.
func (m *Manager) assess(own *ownMount, found mount.MountPoint) {
	var now []health.Condition
	if flags := strings.Join(found.Options, ","); flags != own.flags.Value() {
		err := fmt.Errorf("it was mounted %s and somebody has made that %s", own.flags.Value(), flags)
		now = append(now, health.Degraded(health.FlagsChanged, err))
	}
	switch {
	case slices.Contains(found.SuperOptions, "shutdown"):
		now = append(now, health.Abnormal(health.FilesystemShutDown, errShutDown))
	case slices.Contains(found.SuperOptions, "emergency_ro"):
		now = append(now, health.Abnormal(health.FilesystemReadOnly, errEmergency))
	case isReadOnly(found) && !own.readOnly:
		now = append(now, health.Abnormal(health.FilesystemReadOnly, errReadOnly))
	}
	m.tellOfMount(own.Key, now)
}

// tellOfMount says all that is wrong with a mount, or a directory, that is seen to be ours. When it could not be seen before,
// what was refused is tried again.
func (m *Manager) tellOfMount(h podvolume.Key, now []health.Condition) {
	was := m.health.Of(h)
	m.health.Report(h, health.Mount, now)
	if slices.ContainsFunc(was, func(c health.Condition) bool { return c.Reason == health.MountedOver }) {
		m.executor.ResetBackoff(operationexecutor.Key{Volume: h.Volume, Pod: h.Pod})
		m.volumes.Add(h)
	}
}

// What the options of a filesystem say of its health.
var (
	errShutDown  = errors.New("its filesystem was shut down, after an error or by hand: every use of it fails")
	errEmergency = errors.New("its filesystem has found an error and is read-only since: data that was written may be lost")
	errReadOnly  = errors.New("its filesystem has become read-only")
)

// hasFailed reports whether a filesystem says that it has given up.
func hasFailed(found mount.MountPoint) bool {
	return slices.Contains(found.SuperOptions, "shutdown") || slices.Contains(found.SuperOptions, "emergency_ro")
}

func isReadOnly(found mount.MountPoint) bool { return slices.Contains(found.SuperOptions, "ro") }

// lost makes a mount of ours that is not there any more uncertain, so that it is set up again where it is wanted.
func (m *Manager) lost(own *ownMount) {
	if m.mounts.get(own.path) != own || m.mounts.isBusy(own.path) {
		return
	}
	err := fmt.Errorf("it was unmounted from %q by somebody else: %w", own.path, mount.ErrNotMounted)
	if !m.doubt(own.Key) {
		return
	}
	gone := *own
	gone.lost = time.Now()
	m.mounts.enter(&gone)
	m.health.Report(own.Key, health.Mount, []health.Condition{health.Abnormal(health.Unmounted, err)})
	m.volumes.Add(own.Key)
}

// doubt makes a set-up or a staging that was certain uncertain, and reports whether it was.
func (m *Manager) doubt(h podvolume.Key) bool {
	if h.Pod == "" {
		row, ok := m.actual.GetAttachedVolume(h.Volume)
		return ok && row.DeviceMountState == operationexecutor.DeviceGloballyMounted &&
			m.actual.MarkDeviceAsUncertain(h.Volume, row.DevicePath, row.DeviceMountPath, row.SELinuxMountContext) == nil
	}
	row, ok := m.actual.GetMountedVolume(h.Volume, h.Pod)
	return ok && row.State == operationexecutor.VolumeMounted && m.actual.MarkVolumeMountAsUncertain(operationexecutor.MarkVolumeOpts{
		VolumeName: h.Volume, PodName: h.Pod, PodUID: row.PodUID, Pod: row.Pod, VolumeSpec: row.VolumeSpec,
		OuterVolumeSpecNames: row.OuterVolumeSpecNames, Mounter: row.Mounter, BlockVolumeMapper: row.BlockVolumeMapper,
		MountPath: row.MountPath, SELinuxMountContext: row.SELinuxMountContext, VolumeGidValue: row.VolumeGidValue,
	}) == nil
}

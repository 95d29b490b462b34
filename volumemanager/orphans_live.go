package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
)

// This file deals with orphans that are volumes: a mount, or the link to a device, at the place of a volume that could not be
// rebuilt. Nobody is told that all is gone while one is there.

// liveOrphans returns the orphans that are a volume as far as the manager can tell, and are still there.
func (m *Manager) liveOrphans(ctx context.Context) []Orphan {
	m.mu.Lock()
	orphans := m.orphans // It is replaced, never changed.
	m.mu.Unlock()
	var live []Orphan
	for _, o := range orphans {
		if (o.Mounted || o.dir.block) && m.checkPlace(o) == nil && !m.journal.isRecorded(o.Path) && (m.journal.claims.isRemoving(o.Path) || m.isThere(ctx, o)) {
			live = append(live, o)
		}
	}
	return live
}

// liveOrphansOf returns those of one pod: in its directory, or bound for it in that of a plugin.
func (m *Manager) liveOrphansOf(ctx context.Context, uid types.UID) []Orphan {
	var live []Orphan
	for _, o := range m.liveOrphans(ctx) {
		if o.PodUID == uid || o.PodUID == "" && filepath.Base(o.Path) == string(uid) {
			live = append(live, o)
		}
	}
	return live
}

// isThere looks whether an orphan is still there. What cannot be looked at is.
func (m *Manager) isThere(ctx context.Context, o Orphan) bool {
	if !o.Mounted {
		_, err := os.Lstat(o.Path)
		return !isMissing(err)
	}
	if m.journal.mounts == nil {
		return true
	}
	found, err := m.journal.mounts.Lookup(context.WithoutCancel(ctx), o.Path) // It never waits for the filesystem.
	if errors.Is(err, mount.ErrNotMounted) {
		return false
	}
	return err != nil || o.identity.Is(found)
}

// statusOfOrphans returns where volumes stand of which no more is known than that they are there.
func statusOfOrphans(orphans []Orphan) []VolumeStatus {
	rows := make([]VolumeStatus, 0, len(orphans))
	for _, o := range orphans {
		err := fmt.Errorf("%q is on no record and could not be rebuilt: take it away, or set Options.Orphans: %w", o.Path, volume.ErrInUse)
		if o.Err != nil {
			err = fmt.Errorf("%w: %w", err, o.Err)
		}
		rows = append(rows, VolumeStatus{
			PodUID: o.PodUID, OuterName: o.dir.name, Plugin: o.dir.plugin, Phase: PhaseUncertain, Path: o.Path, Block: o.dir.block, Err: err,
		})
	}
	return rows
}

// removeMapping removes the link to a device of a pod, with the bind to which it leads and the lock of the device, and the
// directory of the binds when that was the last one. Nobody uses the link meanwhile: an intent there waits.
func (m *Manager) removeMapping(ctx context.Context, o Orphan) error {
	release, ok := m.journal.claims.remove(o.Path, func() bool { return !m.journal.isRecorded(o.Path) })
	if !ok {
		return nil // It has become a volume.
	}
	defer release()
	bind, err := os.Readlink(o.Path)
	if isMissing(err) {
		return nil
	}
	binds := filepath.Dir(bind)
	if err != nil || filepath.Base(bind) != string(o.PodUID) || paths.DepthBelow(bind, m.plugins.Host().GetVolumeDevicePluginDir(o.dir.plugin)) != 2 {
		return errors.Join(err, fmt.Errorf("%q stays, since it is no link to a device of pod %q: remove it if nobody needs it: %w", o.Path, o.PodUID, mount.ErrForeign))
	}
	if m.journal.isRecorded(bind) {
		return nil // as above
	}
	d := operationexecutor.DeviceMapping{GlobalMapPath: binds, PodMapDir: filepath.Dir(o.Path), LinkName: filepath.Base(o.Path), PodUID: o.PodUID}
	if err := m.options.BlockMapper.UnmapDevice(ctx, d); err != nil {
		return fmt.Errorf("link %q to a device, of which nothing is on record, stays: %w", o.Path, err)
	}
	m.removeEmptyDir(binds)
	m.options.Logger.Info("a device that was mapped, and of which nothing was on record, was unmapped", "path", o.Path, "bind", bind)
	return nil
}

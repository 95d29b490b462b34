package fakedriver

import (
	"context"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// Bug is a bug of a driver that loses a user's data or exposes it to others. csi-sanity finds none of these bugs.
type Bug uint8

// The bugs.
const (
	NoBug Bug = iota
	// IgnoresReadOnly publishes read-only volumes writable.
	IgnoresReadOnly
	// NeverMounts makes a directory at the target.
	NeverMounts
	// SharesOneDirectory has one directory for all volumes.
	SharesOneDirectory
	// WipesAtPublish empties a volume when it is published.
	WipesAtPublish
	// StacksMounts mounts again at each call.
	StacksMounts
	// UnmountsLazily unmounts a volume that has an open file.
	UnmountsLazily
	// ClonesNothing reports an empty volume as a copy.
	ClonesNothing
	// LeavesTheStorage reports a volume as deleted and keeps its storage.
	LeavesTheStorage
	// MeasuresNothing reports 0 for every quantity.
	MeasuresNothing
	// ForgetsAtRestart forgets all volumes at a restart.
	ForgetsAtRestart
	// NoLock has no lock per volume: two concurrent calls both find the tmpfs of a volume missing, and both mount one.
	NoLock
)

// String describes the bug.
func (b Bug) String() string {
	return [...]string{
		"none", "ignores read-only", "publishes without a mount", "all volumes share one directory", "wipes data at each publish",
		"repeated publish stacks mounts", "unpublish is lazy", "clone copies nothing", "delete leaves the storage", "stats are zero",
		"state is lost at a restart", "no lock per volume",
	}[b]
}

// Kill resets the driver's memory, as a kill and a restart do. Its connections stay open.
func (d *Driver) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.has(ForgetsAtRestart) {
		clear(d.volumes)
	}
}

// The caller holds the lock.
func (d *Driver) has(b Bug) bool { return d.options.Bug == b }

// source returns the directory to publish, with the effect of the bugs. The caller holds the lock.
func (d *Driver) source(ctx context.Context, v *Volume) (string, error) {
	if d.options.Memory {
		return d.path(v.ID), d.mountMemory(ctx, d.path(v.ID))
	}
	switch d.options.Bug {
	case SharesOneDirectory:
		return d.path("shared"), os.MkdirAll(d.path("shared"), 0o755)
	case WipesAtPublish:
		return d.path(v.ID), d.empty(v.ID)
	default:
		return d.path(v.ID), nil
	}
}

// mountMemory mounts the tmpfs of a volume unless it is mounted. The caller holds the lock. With [NoLock], mountMemory
// releases it meanwhile.
func (d *Driver) mountMemory(ctx context.Context, path string) error {
	if d.has(NoLock) {
		d.mu.Unlock()
		defer d.mu.Lock()
	}
	mounted, err := d.mounter.IsMountPoint(ctx, path)
	if mounted || err != nil {
		return err
	}
	return d.mounter.Mount(ctx, mount.Request{Source: "volume", Target: path, FSType: "tmpfs", Options: []string{"nosuid", "nodev"}})
}

// empty deletes the content of a volume.
func (d *Driver) empty(id string) error {
	root, err := os.OpenRoot(d.path(id))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	entries, err := os.ReadDir(d.path(id))
	for _, entry := range entries {
		if err := root.RemoveAll(entry.Name()); err != nil {
			return err
		}
	}
	return err
}

// fill copies the content source into a new volume. The caller holds the lock.
func (d *Driver) fill(v *Volume, r *csi.CreateVolumeRequest) error {
	if snapshot := r.GetVolumeContentSource().GetSnapshot(); snapshot != nil {
		return d.restore(v, snapshot.GetSnapshotId())
	}
	origin := r.GetVolumeContentSource().GetVolume()
	if origin == nil || d.has(ClonesNothing) {
		return nil
	}
	from, err := d.volume(origin.GetVolumeId())
	if err != nil {
		return err
	}
	return os.CopyFS(d.path(v.ID), os.DirFS(d.path(from.ID)))
}

func detachMount(path string) error { return unix.Unmount(path, unix.MNT_DETACH) }

package fakedriver

import (
	"context"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// Bug is one mistake of a driver that costs somebody their data, or shows it to others. csi-sanity finds none of them.
type Bug uint8

// The bugs.
const (
	NoBug Bug = iota
	// IgnoresReadOnly publishes for writing what is to be read alone.
	IgnoresReadOnly
	// NeverMounts makes a directory at the target.
	NeverMounts
	// SharesOneDirectory has one directory for all volumes.
	SharesOneDirectory
	// WipesAtPublish empties a volume when it is published.
	WipesAtPublish
	// StacksMounts mounts again at each call.
	StacksMounts
	// UnmountsLazily takes away a volume in which a file is open.
	UnmountsLazily
	// ClonesNothing says that an empty volume is a copy.
	ClonesNothing
	// LeavesTheStorage deletes a volume by word alone.
	LeavesTheStorage
	// MeasuresNothing says 0 of everything.
	MeasuresNothing
	// ForgetsAtRestart knows of no volume when it is started again.
	ForgetsAtRestart
	// NoLock lets two calls for one volume overlap: both find that its tmpfs is missing, and both mount one.
	NoLock
)

// String says what goes wrong.
func (b Bug) String() string {
	return [...]string{
		"none", "ignores read-only", "publishes without a mount", "all volumes share one directory", "wipes data at each publish",
		"repeated publish stacks mounts", "unpublish is lazy", "clone copies nothing", "delete leaves the storage", "stats are zero",
		"state is lost at a restart", "no lock per volume",
	}[b]
}

// Kill is what a kill and a start do to what the driver keeps in memory, without an end to its connections.
func (d *Driver) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.has(ForgetsAtRestart) {
		clear(d.volumes)
	}
}

// has is called with the lock held.
func (d *Driver) has(b Bug) bool { return d.options.Bug == b }

// source is the directory that is published, as the bugs have it. It is called with the lock held.
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

// mountMemory mounts the tmpfs of a volume unless it is mounted. It is called with the lock held, which a driver without a lock for a
// volume lets go meanwhile.
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

// fill copies the volume or the snapshot that a new volume is to be a copy of. It is called with the lock held.
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

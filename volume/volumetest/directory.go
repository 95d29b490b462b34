package volumetest

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/mount"
)

// directory is the directory of the node of one case, in its world.
type directory struct {
	*caseRun
	world World
	root  string
}

// beneathRoot reports whether path lies in the directory of this case.
func (d *directory) beneathRoot(path string) bool { return strings.HasPrefix(path, d.root+"/") }

// isKernel reports whether the world is the machine.
func (d *directory) isKernel() bool {
	_, ok := d.world.(kernelWorld)
	return ok
}

// exists reports whether something is at path.
func (d *directory) exists(path string) bool {
	d.t.Helper()
	_, err := d.world.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.t.Fatalf("looking at %s: %v", path, err)
	}
	return err == nil
}

// namesIn returns the names in a directory, none where it is not there or the world cannot tell.
func (d *directory) namesIn(dir string) []string {
	d.t.Helper()
	world, ok := d.world.(lister)
	if !ok {
		return nil
	}
	entries, err := world.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.t.Fatalf("reading %s: %v", dir, err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func (d *directory) syncFile(path string) error {
	if world, ok := d.world.(syncer); ok {
		return world.Sync(path)
	}
	return nil
}

// mountsAt returns the mounts at path itself.
func (d *directory) mountsAt(path string) []mount.MountPoint {
	d.t.Helper()
	return d.mounts(func(m mount.MountPoint) bool { return m.Path == path })
}

// mountsBeneathRoot returns all mounts in the directory of this case.
func (d *directory) mountsBeneathRoot() []mount.MountPoint {
	d.t.Helper()
	return d.mounts(func(m mount.MountPoint) bool { return d.beneathRoot(m.Path) })
}

func (d *directory) mounts(keep func(mount.MountPoint) bool) []mount.MountPoint {
	d.t.Helper()
	table, err := d.world.List(d.ctx())
	if err != nil {
		d.t.Fatalf("reading the mount table: %v", err)
	}
	var kept []mount.MountPoint
	for _, m := range table {
		if keep(m) {
			kept = append(kept, m)
		}
	}
	return kept
}

// expectMounted fails unless exactly one mount is at path.
func (d *directory) expectMounted(path string) {
	d.t.Helper()
	if n := len(d.mountsAt(path)); n != 1 {
		d.broken("%d mounts are at %s instead of one", n, path)
	}
}

// expectNothingStacked fails where one mount in the directory of this case hides another.
func (d *directory) expectNothingStacked() {
	d.t.Helper()
	seen := map[string]bool{}
	for _, m := range d.mountsBeneathRoot() {
		if seen[m.Path] {
			d.broken("one mount is on top of another at %s", m.Path)
		}
		seen[m.Path] = true
	}
}

// unmountRest takes off what a broken plugin has left mounted, deepest first: the directory of the test is emptied soon,
// and what is mounted in it must not be.
func (d *directory) unmountRest() {
	world, ok := d.world.(interface {
		Unmount(ctx context.Context, target string, options mount.UnmountOptions) error
	})
	if !ok {
		return
	}
	ctx := d.afterwards()
	table, err := d.world.List(ctx)
	if err != nil {
		d.t.Logf("clean-up: reading the mount table: %v", err)
	}
	for _, m := range slices.Backward(table) {
		if !d.beneathRoot(m.Path) {
			continue
		}
		err := world.Unmount(ctx, m.Path, mount.UnmountOptions{Lazy: true})
		if err != nil && !errors.Is(err, mount.ErrNotMounted) {
			d.t.Logf("clean-up: %v", err)
		}
	}
}

package mounttest

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/volumekit/volumekit/mount"
)

// World has the files in the mounts of the suite, by absolute path. Its methods have the names and the errors of package os. [Kernel] is
// this machine. fake.Mounter is one in memory.
type World interface {
	// Mkdir makes a directory.
	Mkdir(name string, perm fs.FileMode) error
	// WriteFile replaces the content of a file, and makes the file if it is missing.
	WriteFile(name string, data []byte, perm fs.FileMode) error
	// ReadFile reads a file.
	ReadFile(name string) ([]byte, error)
	// Lstat describes the file with that name, and does not follow a symbolic link.
	Lstat(name string) (fs.FileInfo, error)
	// Symlink makes a symbolic link at newname.
	Symlink(oldname, newname string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
}

// Kernel returns the [World] of this machine.
func Kernel() World { return kernel{} }

type kernel struct{}

var _ World = kernel{}

// Mkdir is os.Mkdir.
func (kernel) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir(name, perm) }

// WriteFile is os.WriteFile.
func (kernel) WriteFile(name string, data []byte, perm fs.FileMode) error {
	return os.WriteFile(name, data, perm)
}

// ReadFile is os.ReadFile.
func (kernel) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

// Lstat is os.Lstat.
func (kernel) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// Symlink is os.Symlink.
func (kernel) Symlink(oldname, newname string) error { return os.Symlink(oldname, newname) }

// Remove is os.Remove.
func (kernel) Remove(name string) error { return os.Remove(name) }

// Config has the mounter under test and its world.
type Config struct {
	// New returns a mounter and its world, for one case. The suite mounts tmpfs and bind mounts.
	New func(t testing.TB) (mount.Interface, World)
	// Root returns the absolute path of an empty directory of the world, for one case. No element of the path is a symbolic link. Nil
	// means t.TempDir.
	Root func(t testing.TB, w World) string
}

// bench is one case: a mounter, a world and a directory.
type bench struct {
	testing.TB
	mounter mount.Interface
	world   World
	root    string
}

func newBench(t testing.TB, config Config) *bench {
	t.Helper()
	b := &bench{TB: t}
	b.mounter, b.world = config.New(t)
	if config.Root != nil {
		b.root = config.Root(t, b.world)
	} else {
		b.root = t.TempDir()
	}
	t.Cleanup(b.cleanUp)
	return b
}

// cleanUp unmounts what a failed case has left, so that the removal of the directory touches no mount.
func (b *bench) cleanUp() {
	ctx := context.WithoutCancel(b.Context())
	table, err := b.mounter.List(ctx)
	if err != nil {
		b.Errorf("reading the mount table after the test: %v", err)
		return
	}
	for _, m := range slices.Backward(table) {
		if below(m.Path, b.root) {
			err := b.mounter.Unmount(ctx, m.Path, mount.UnmountOptions{Lazy: true})
			b.Errorf("left mounted: %q (taking it off: %v)", m.Path, err)
		}
	}
}

func below(name, dir string) bool {
	return len(name) > len(dir) && name[:len(dir)] == dir && name[len(dir)] == '/'
}

// path is a path below the case's directory.
func (b *bench) path(name string) string { return b.root + "/" + name }

// dir makes a directory and returns its path.
func (b *bench) dir(name string) string {
	b.Helper()
	b.must(b.world.Mkdir(b.path(name), 0o755))
	return b.path(name)
}

// file writes a file and returns its path.
func (b *bench) file(name, content string) string {
	b.Helper()
	b.must(b.world.WriteFile(b.path(name), []byte(content), 0o644))
	return b.path(name)
}

// mount mounts, and ends the case on an error.
func (b *bench) mount(source, target string, options ...string) {
	b.Helper()
	b.must(b.mounter.Mount(b.Context(), mount.Request{Source: source, Target: target, Options: options}))
}

// tmpfs mounts a filesystem in memory.
func (b *bench) tmpfs(target string, options ...string) {
	b.Helper()
	b.must(b.mounter.Mount(b.Context(), tmpfs(target, options...)))
}

func tmpfs(target string, options ...string) mount.Request {
	return mount.Request{Source: "memory", Target: target, FSType: "tmpfs", Options: options}
}

// unmountPaths unmounts and removes, and checks that both have happened.
func (b *bench) unmountPaths(paths ...string) {
	b.Helper()
	for _, path := range paths {
		b.must(mount.UnmountPath(b.Context(), b.mounter, path, mount.UnmountOptions{}))
		b.absent(path)
	}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

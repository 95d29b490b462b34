package volumetest

import (
	"context"
	"io/fs"
	"os"

	"github.com/volumekit/volumekit/mount"
)

// World is where the effects of a plugin are looked at: a mount table and the files that can be reached through it. Every
// path is absolute. [KernelWorld] is the real one and fake.Mounter is one in memory.
type World interface {
	// List returns the mount table.
	List(ctx context.Context) ([]mount.MountPoint, error)
	// ReadFile returns the content of a file; errors are those of os.ReadFile.
	ReadFile(name string) ([]byte, error)
	// WriteFile writes a file, which it makes where it does not exist; errors are those of os.WriteFile. Through a
	// read-only mount it must fail.
	WriteFile(name string, data []byte, perm fs.FileMode) error
	// Lstat describes what is at name and does not follow a symbolic link there; errors are those of os.Lstat.
	Lstat(name string) (fs.FileInfo, error)
}

// KernelWorld returns the world of the machine that the test runs on: its files, and the mount table of the process.
func KernelWorld() World { return kernelWorld{mounter: mount.New(mount.Options{})} }

type kernelWorld struct{ mounter *mount.Mounter }

func (w kernelWorld) List(ctx context.Context) ([]mount.MountPoint, error) {
	return w.mounter.List(ctx)
}

// Unmount takes off what a broken plugin has left.
func (w kernelWorld) Unmount(ctx context.Context, target string, options mount.UnmountOptions) error {
	return w.mounter.Unmount(ctx, target, options)
}

func (kernelWorld) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

func (kernelWorld) WriteFile(name string, data []byte, perm fs.FileMode) error {
	return os.WriteFile(name, data, perm)
}

func (kernelWorld) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

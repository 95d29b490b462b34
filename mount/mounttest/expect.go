package mounttest

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/volumekit/volumekit/mount"
)

// fails checks that err matches want.
func (b *bench) fails(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("got error %v, want one that matches %v", err, want)
	}
}

// reads checks the content of a file.
func (b *bench) reads(name, want string) {
	b.Helper()
	got, err := b.world.ReadFile(name)
	if err != nil {
		b.Fatal(err)
	}
	if string(got) != want {
		b.Fatalf("%q holds %q, want %q", name, got, want)
	}
}

// writes writes a file.
func (b *bench) writes(name, content string) {
	b.Helper()
	b.must(b.world.WriteFile(name, []byte(content), 0o644))
}

// refusesWrite checks that a file cannot be written, with the given cause.
func (b *bench) refusesWrite(name string, want error) {
	b.Helper()
	b.fails(b.world.WriteFile(name, []byte("must not be written"), 0o644), want)
}

// absent checks that there is nothing at the path.
func (b *bench) absent(name string) {
	b.Helper()
	if _, err := b.world.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		b.Fatalf("%q is still there (error %v)", name, err)
	}
}

// present checks that there is something at the path.
func (b *bench) present(name string) fs.FileInfo {
	b.Helper()
	info, err := b.world.Lstat(name)
	if err != nil {
		b.Fatal(err)
	}
	return info
}

// mounted checks whether IsMountPoint and the table agree with want.
func (b *bench) mounted(name string, want bool) {
	b.Helper()
	is, err := b.mounter.IsMountPoint(b.Context(), name)
	if err != nil {
		b.Fatal(err)
	}
	if is != want {
		b.Fatalf("IsMountPoint(%q) = %v, want %v", name, is, want)
	}
	if got := b.countMounts(name) > 0; got != want {
		b.Fatalf("the table has %q: %v, want %v", name, got, want)
	}
}

// mounts returns the lines of the table for a path.
func (b *bench) mounts(name string) []mount.MountPoint {
	b.Helper()
	table, err := b.mounter.List(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return slices.DeleteFunc(slices.Clone(table), func(m mount.MountPoint) bool { return m.Path != name })
}

func (b *bench) countMounts(name string) int {
	b.Helper()
	return len(b.mounts(name))
}

// top returns the uppermost mount at a path.
func (b *bench) top(name string) mount.MountPoint {
	b.Helper()
	mounts := b.mounts(name)
	if len(mounts) == 0 {
		b.Fatalf("nothing is mounted at %q", name)
	}
	return mounts[len(mounts)-1]
}

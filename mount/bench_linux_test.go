package mount_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// BenchmarkBindAndUnmount makes and ends one read-only bind beside n mounts: of the root of a mount, as a volume that is
// staged has one, and of a plain directory on the filesystem that bears the n mounts.
func BenchmarkBindAndUnmount(b *testing.B) {
	mounttest.RequireMounts(b)
	for _, n := range []int{10, 5000} {
		source, directory, target := crowd(b, n)
		for name, source := range map[string]string{"root": source, "directory": directory} {
			b.Run(fmt.Sprintf("%s/mounts=%d", name, n), func(b *testing.B) { bindAndUnmount(b, source, target) })
			b.Run(fmt.Sprintf("%s/mounts=%d/bare", name, n), func(b *testing.B) { bareBindAndUnmount(b, source, target) })
		}
	}
}

func bindAndUnmount(b *testing.B, source, target string) {
	b.Helper()
	m := mount.New(mount.Options{})
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	request := mount.Request{Source: source, Target: target, Options: []string{"bind", "ro", "nosuid", "nodev"}}
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Mount(ctx, request); err != nil {
			b.Fatal(err)
		}
		if err := m.Unmount(ctx, target, plain); err != nil {
			b.Fatal(err)
		}
	}
}

// bareBindAndUnmount is the lower bound: the system calls alone, without a look before or after.
func bareBindAndUnmount(b *testing.B, source, target string) {
	b.Helper()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	for b.Loop() {
		tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			b.Fatal(err)
		}
		err = errors.Join(
			unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr),
			unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH),
			unix.Close(tree),
			unix.Unmount(target, unix.UMOUNT_NOFOLLOW),
		)
		if err != nil {
			b.Fatal(err)
		}
	}
}

// crowd makes a tmpfs that bears n binds of another.
func crowd(b *testing.B, n int) (source, directory, target string) {
	b.Helper()
	base := filepath.Join(b.TempDir(), "crowd")
	m := mount.New(mount.Options{})
	require.NoError(b, m.Mount(b.Context(), mount.Request{Source: "memory", Target: base, FSType: "tmpfs"}))
	b.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
	source, directory, target = filepath.Join(base, "source"), filepath.Join(base, "plain"), filepath.Join(base, "target")
	require.NoError(b, m.Mount(b.Context(), mount.Request{Source: "memory", Target: source, FSType: "tmpfs"}))
	require.NoError(b, os.Mkdir(directory, 0o755))
	require.NoError(b, os.Mkdir(target, 0o755))
	for i := range n {
		pod := filepath.Join(base, "pods", fmt.Sprint(i), "mount")
		request := mount.Request{Source: source, Target: pod, Options: []string{"bind"}}
		require.NoError(b, m.Mount(b.Context(), request))
	}
	return source, directory, target
}

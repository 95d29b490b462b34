package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// mountTable is a tmpfs with n bind mounts of root on it, and an empty target. Root is a mount of its own, as a staged
// volume is; directory is a plain one on the tmpfs, which has n child mounts. One is one of the n. Few is a mount that is
// bound at two more places.
type mountTable struct{ base, root, directory, target, one, few string }

func newMountTable(b *testing.B, n int) mountTable {
	mounttest.RequireRoot(b)
	base := scratch(b)
	b.Cleanup(func() { must(b, unix.Unmount(base, unix.MNT_DETACH)) })
	must(b, unix.Mount("tmpfs", base, "tmpfs", 0, ""))
	t := mountTable{base: base, root: filepath.Join(base, "root"), directory: filepath.Join(base, "directory"),
		target: filepath.Join(base, "target"), few: filepath.Join(base, "few")}
	for _, d := range []string{t.root, t.directory, t.target, t.few} {
		must(b, os.Mkdir(d, 0o755))
	}
	must(b, unix.Mount("tmpfs", t.root, "tmpfs", 0, ""))
	must(b, unix.Mount("tmpfs", t.few, "tmpfs", 0, ""))
	bindBelow(b, t.few, filepath.Join(base, "few-1"))
	for i := range n {
		p := filepath.Join(base, fmt.Sprintf("pods/00000000-0000-4000-8000-%012d/volumes/kubernetes.io~csi/pvc-%d/mount", i, i))
		bindBelow(b, t.root, p)
		if i == n/2 {
			t.one = p
		}
	}
	bindBelow(b, t.few, filepath.Join(base, "few-2"))
	return t
}

// bindBelow makes the directory target and binds source there.
func bindBelow(b *testing.B, source, target string) {
	must(b, os.MkdirAll(target, 0o755))
	must(b, limits.Bind(source, target, 0))
}

var tableSizes = []int{10, 1000, 5000}

// pair makes and removes one mount.
type pair struct {
	name    string
	mount   func(source, target string) error
	unmount func(target string) error
}

// run measures the two together, as a caller needs both.
func (p pair) run(b *testing.B, group, source, target string) {
	b.Run(group+"/impl="+p.name, func(b *testing.B) {
		b.ReportAllocs()
		reportChildren, reportCPU := countChildren(b), countCPU(b)
		for b.Loop() {
			must(b, p.mount(source, target))
			must(b, p.unmount(target))
		}
		reportCPU()
		reportChildren()
	})
}

func run(name string, args ...string) error { return exec.Command(name, args...).Run() }

func unmountDirectly(target string) error { return unix.Unmount(target, unix.UMOUNT_NOFOLLOW) }

func binders(ctx context.Context) []pair {
	theirs, ours := k8smount.New(""), mount.New(mount.Options{})
	return []pair{
		{"k8s", func(source, target string) error { return theirs.Mount(source, target, "", []string{"bind", "ro"}) },
			theirs.Unmount},
		{"ours", func(source, target string) error {
			return ours.Mount(ctx, mount.Request{Source: source, Target: target, Options: []string{"bind", "ro"}})
		}, func(target string) error { return ours.Unmount(ctx, target, mount.UnmountOptions{}) }},
		{"mount(8)", func(source, target string) error { return run("mount", "-n", "-o", "bind,ro", source, target) },
			func(target string) error { return run("umount", "-n", target) }},
		{"limit-mount(2)", func(source, target string) error { return limits.BindReadOnly(source, target) }, unmountDirectly},
		{"limit", func(source, target string) error { return limits.Bind(source, target, unix.MOUNT_ATTR_RDONLY) }, unmountDirectly},
	}
}

// BenchmarkBindMount makes and removes one read-only bind mount beside n others: of a mount's root, and of a plain
// directory of the filesystem that the n others are mounted on.
func BenchmarkBindMount(b *testing.B) {
	for _, n := range tableSizes {
		t := newMountTable(b, n)
		for _, source := range []string{t.root, t.directory} {
			for _, p := range binders(deadline(b)) {
				p.run(b, fmt.Sprintf("source=%s/mounts=%d", filepath.Base(source), n), source, t.target)
			}
		}
	}
}

// BenchmarkTmpfs mounts and unmounts a new tmpfs of 1 MiB.
func BenchmarkTmpfs(b *testing.B) {
	t := newMountTable(b, 10)
	ctx, theirs, ours := deadline(b), k8smount.New(""), mount.New(mount.Options{})
	for _, p := range []pair{
		{"k8s", func(source, target string) error { return theirs.Mount(source, target, "tmpfs", []string{"size=1m"}) },
			theirs.Unmount},
		{"ours", func(source, target string) error {
			return ours.Mount(ctx, mount.Request{Source: source, Target: target, FSType: "tmpfs", Options: []string{"size=1m"}})
		}, func(target string) error { return ours.Unmount(ctx, target, mount.UnmountOptions{}) }},
		{"limit-mount(2)", func(source, target string) error { return unix.Mount(source, target, "tmpfs", 0, "size=1m") },
			unmountDirectly},
		{"limit", func(_, target string) error { return limits.Tmpfs(target) }, unmountDirectly},
	} {
		p.run(b, "mounts=10", "tmpfs", t.target)
	}
}

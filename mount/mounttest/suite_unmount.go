package mounttest

import (
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// The cases of Unmount and RemoveTarget.

func unmountCases() []testCase {
	return []testCase{
		{"stacked mounts are all taken off", caseStacked},
		{"a stack that is taken off in part is uncertain", caseStackedBusy},
		{"unmounting what is not mounted", caseNotMounted},
		{"unmounting a mount that holds another is busy", caseNested},
		{"a mount point is not removed", caseRemoveMounted},
		{"only empty targets are removed", caseRemoveFull},
		{"cleaning up is repeatable", caseCleanUpTwice},
		{"cleaning up leaves files whole", caseCleanUpFull},
		{"cleaning up may keep the target", caseKeepTarget},
	}
}

func caseStacked(b *bench) {
	source, target := b.dir("source"), b.dir("target")
	for range 3 {
		b.mount(source, target, "bind")
	}
	b.tmpfs(target)
	if n := b.countMounts(target); n != 4 {
		b.Fatalf("%d mounts, want 4", n)
	}
	b.must(b.mounter.Unmount(b.Context(), target, plain))
	b.mounted(target, false)
}

func caseStackedBusy(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	b.tmpfs(target + "/inner")
	b.tmpfs(target)
	err := b.mounter.Unmount(b.Context(), target, plain)
	b.fails(err, syscall.EBUSY)
	b.fails(err, mount.ErrUncertain)
	b.mounted(target, true)
	b.mounted(target+"/inner", true)
	b.unmountPaths(target+"/inner", target)
}

func caseNotMounted(b *bench) {
	for _, path := range []string{b.dir("target"), b.file("file", ""), b.path("none"), b.path("none/none")} {
		b.fails(b.mounter.Unmount(b.Context(), path, plain), mount.ErrNotMounted)
	}
	b.present(b.path("target"))
}

func caseNested(b *bench) {
	outer := b.dir("outer")
	b.tmpfs(outer)
	b.tmpfs(outer + "/inner")
	b.fails(b.mounter.Unmount(b.Context(), outer, plain), syscall.EBUSY)
	b.mounted(outer, true)
	b.unmountPaths(outer+"/inner", outer)
}

func caseRemoveMounted(b *bench) {
	source, full, dir, file, other := b.file("source", ""), b.file("full", "content"), b.dir("dir"), b.path("file"), b.path("other")
	b.tmpfs(dir)
	b.mount(source, file, "bind")
	b.mount(full, other, "bind")
	for _, path := range []string{dir, file, other} {
		b.fails(b.mounter.RemoveTarget(b.Context(), path), syscall.EBUSY)
		b.mounted(path, true)
	}
	b.unmountPaths(dir, file, other)
}

func caseRemoveFull(b *bench) {
	ctx := b.Context()
	full := b.dir("full")
	b.writes(full+"/f", "content")
	b.fails(b.mounter.RemoveTarget(ctx, full), syscall.ENOTEMPTY)
	b.reads(full+"/f", "content")
	b.fails(b.mounter.RemoveTarget(ctx, full+"/f"), syscall.ENOTEMPTY)
	b.reads(full+"/f", "content")
	b.must(b.mounter.RemoveTarget(ctx, b.dir("empty")))
	b.absent(b.path("empty"))
	b.must(b.mounter.RemoveTarget(ctx, b.file("file", "")))
	b.absent(b.path("file"))
	b.must(b.mounter.RemoveTarget(ctx, b.path("none")))
	b.must(b.mounter.RemoveTarget(ctx, b.path("none/none")))
}

func caseCleanUpTwice(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	b.unmountPaths(target, target)
	b.dir("target")
	b.unmountPaths(target, target, b.path("none/none"))
}

func caseCleanUpFull(b *bench) {
	target := b.dir("target")
	b.writes(target+"/f", "below the mount")
	b.tmpfs(target)
	b.writes(target+"/g", "in the mount")
	b.fails(mount.UnmountPath(b.Context(), b.mounter, target, plain), syscall.ENOTEMPTY)
	b.mounted(target, false)
	b.reads(target+"/f", "below the mount")
}

func caseKeepTarget(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	options := mount.UnmountMountPointOptions{KeepTarget: true}
	for range 2 {
		b.must(mount.UnmountMountPoint(b.Context(), b.mounter, target, options))
		b.mounted(target, false)
	}
}

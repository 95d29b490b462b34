package mounttest

import (
	"errors"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// The cases of UnmountOptions.Expect.

func expectCases() []testCase {
	return []testCase{
		{"the mount that is meant is taken off", caseExpected},
		{"a foreign mount is reported and left alone", caseForeign},
		{"a foreign mount on top is reported and nothing is taken off", caseForeignOnTop},
		{"a foreign mount below stays and is reported", caseForeignBelow},
		{"what is known of a mount in part may fit several", caseExpectedInPart},
		{"a mount that is meant and busy stays", caseExpectedBusy},
	}
}

// foreignMount mounts what differs from b.tmpfs in all that a kernel without unique ids tells.
func (b *bench) foreignMount(target string) {
	b.Helper()
	b.must(b.mounter.Mount(b.Context(), mount.Request{Source: "foreign", Target: target, FSType: "tmpfs"}))
}

func (b *bench) expect(target string) mount.UnmountOptions {
	b.Helper()
	return mount.UnmountOptions{Expect: b.lookedUp(target).Identity()}
}

func (b *bench) certain(err error) {
	b.Helper()
	if errors.Is(err, mount.ErrUncertain) {
		b.Fatalf("got error %v, want one that is not uncertain", err)
	}
}

func caseExpected(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	ours := b.expect(target)
	b.mount("", target, "remount", "bind", "ro")
	b.must(mount.UnmountPath(b.Context(), b.mounter, target, ours))
	b.absent(target)
	b.fails(b.mounter.Unmount(b.Context(), target, ours), mount.ErrNotMounted)
	b.must(mount.UnmountPath(b.Context(), b.mounter, target, ours))
}

func caseForeign(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	ours := b.expect(target)
	b.must(b.mounter.Unmount(b.Context(), target, plain))
	b.foreignMount(target)
	for _, options := range []mount.UnmountOptions{ours, {Expect: ours.Expect, Lazy: true, Force: 1}} {
		err := mount.UnmountPath(b.Context(), b.mounter, target, options)
		b.fails(err, mount.ErrForeign)
		b.certain(err)
		b.mounted(target, true)
	}
	b.unmountPaths(target)
}

func caseForeignOnTop(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	ours := b.expect(target)
	b.foreignMount(target)
	err := b.mounter.Unmount(b.Context(), target, ours)
	b.fails(err, mount.ErrForeign)
	b.certain(err)
	if n := b.countMounts(target); n != 2 {
		b.Fatalf("%d mounts are left, want 2", n)
	}
	foreign := b.expect(target)
	err = b.mounter.Unmount(b.Context(), target, foreign)
	b.fails(err, mount.ErrForeign)
	b.fails(err, mount.ErrUncertain)
	b.must(mount.UnmountPath(b.Context(), b.mounter, target, ours))
	b.absent(target)
}

func caseForeignBelow(b *bench) {
	target := b.dir("target")
	b.foreignMount(target)
	b.tmpfs(target)
	ours := b.expect(target)
	err := mount.UnmountPath(b.Context(), b.mounter, target, ours)
	b.fails(err, mount.ErrForeign)
	b.fails(err, mount.ErrUncertain)
	if top := b.top(target); top.Source != "foreign" || b.countMounts(target) != 1 {
		b.Fatalf("the table has %+v", b.mounts(target))
	}
	b.unmountPaths(target)
}

func caseExpectedInPart(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	b.tmpfs(target)
	options := mount.UnmountOptions{Expect: mount.Identity{FSType: "tmpfs", Source: "foreign"}}
	b.fails(b.mounter.Unmount(b.Context(), target, options), mount.ErrForeign)
	options.Expect.Source = "memory"
	b.must(b.mounter.Unmount(b.Context(), target, options))
	b.mounted(target, false)
}

func caseExpectedBusy(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	ours := b.expect(target)
	b.tmpfs(target + "/inner")
	err := b.mounter.Unmount(b.Context(), target, ours)
	b.fails(err, syscall.EBUSY)
	b.certain(err)
	b.mounted(target, true)
	ours.Lazy = true
	b.must(b.mounter.Unmount(b.Context(), target, ours))
	b.mounted(target, false)
}

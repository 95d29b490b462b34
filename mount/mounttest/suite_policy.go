package mounttest

import (
	"errors"
	"slices"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// The cases of what a policy asks for: options of users, labels, mounts below.

func caseRemountBelow(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	b.tmpfs(target + "/below")
	b.tmpfs(target + "/below/deep")
	all := []string{target, target + "/below", target + "/below/deep"}
	b.mount("", target, "remount", "rro", "rnosuid")
	for _, path := range all {
		b.refusesWrite(path+"/f", syscall.EROFS)
		if !slices.Contains(b.top(path).Options, "nosuid") {
			b.Fatalf("%q lacks nosuid: %+v", path, b.top(path))
		}
	}
	b.mount("", target, "remount", "bind", "rw")
	b.writes(target+"/f", "content")
	b.refusesWrite(target+"/below/f", syscall.EROFS)
	b.mount("", target, "remount", "bind", "rrw")
	for _, path := range all {
		b.writes(path+"/f", "content")
	}
	for _, path := range slices.Backward(all) {
		b.must(b.mounter.Unmount(b.Context(), path, plain))
	}
}

func caseUserOptions(b *bench) {
	source, target := b.dir("source"), b.path("target")
	for _, option := range []string{
		"bind", "rbind", "remount", "shared", "rshared", "slave", "private", "runbindable",
		"context=u:r:t:s0", "fscontext=u:r:t:s0", "defcontext=x", "rootcontext=x",
	} {
		request := mount.Request{Source: source, Target: target, FSType: "tmpfs", UserOptions: []string{option}}
		b.fails(b.mounter.Mount(b.Context(), request), mount.ErrInvalid)
		request.FSType = ""
		b.fails(b.mounter.Mount(b.Context(), request), mount.ErrInvalid)
	}
	b.absent(target)
}

func caseUserOptionsAreWeaker(b *bench) {
	target := b.dir("target")
	b.must(b.mounter.Mount(b.Context(), mount.Request{
		Source: "memory", Target: target, FSType: "tmpfs", Options: []string{"nosuid", "nodev", "ro"},
		UserOptions: []string{"suid", "dev", "rw", "rsuid", "noexec", "size=64k"},
	}))
	top := b.top(target)
	for _, option := range []string{"nosuid", "nodev", "ro", "noexec"} {
		if !slices.Contains(top.Options, option) {
			b.Fatalf("%s is lacking: %+v", option, top)
		}
	}
	if !slices.Contains(top.SuperOptions, "size=64k") {
		b.Fatalf("the option of the filesystem is lacking: %+v", top)
	}
	b.unmountPaths(target)
}

func caseSELinuxContext(b *bench) {
	target := b.path("target")
	request := tmpfs(target)
	request.SELinuxContext = "system_u:object_r:container_file_t:s0:c1,c2"
	err := b.mounter.Mount(b.Context(), request)
	// A kernel with SELinux and no policy, or one that does not know the label, says EINVAL.
	if errors.Is(err, mount.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		b.absent(target)
		return
	}
	b.must(err)
	isContext := func(option string) bool { return strings.HasPrefix(option, "context=") }
	if top := b.top(target); !slices.ContainsFunc(top.SuperOptions, isContext) {
		b.Fatalf("the table says nothing of the label: %+v", top)
	}
	b.unmountPaths(target)
}

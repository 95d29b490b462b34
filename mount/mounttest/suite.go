package mounttest

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volumekit/volumekit/mount"
)

// plain is the unmount that the cases ask for.
var plain mount.UnmountOptions

// Run runs the suite: one subtest for each case, named after what it shows. Each mounter of mount.Interface passes all.
func Run(t *testing.T, config Config) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) { c.run(newBench(t, config)) })
	}
}

type testCase struct {
	name string
	run  func(*bench)
}

func cases() []testCase {
	return slices.Concat(mountCases(), unmountCases(), expectCases(), propagationCases(), requestCases())
}

func mountCases() []testCase {
	return []testCase{
		{"a tmpfs is mounted and taken off", caseTmpfs},
		{"a bind shows the same files", caseBindDirectory},
		{"a bind of a file shows that file", caseBindFile},
		{"a bind within one filesystem is a mount point", caseBindIsMountPoint},
		{"a read-only bind refuses writes and its source does not", caseBindReadOnly},
		{"a bind takes mounts below along only when recursive", caseBindRecursive},
		{"options of the mount are in the table", caseMountOptions},
		{"of options that exclude each other the last counts", caseAccessTimes},
		{"a bind may map the owners of what it shows", caseIDMappings},
		{"a remount makes read-only and writable again", caseRemount},
		{"a remount of a bind leaves its filesystem alone", caseRemountBind},
		{"a remount may be for the mounts below too", caseRemountBelow},
		{"a remount that is refused changes nothing", caseRemountRefused},
		{"a remount needs a mount", caseRemountNothing},
		{"an exclusive mount is refused where one is", caseExclusive},
		{"a mount is looked up by its path", caseLookup},
		{"of stacked mounts the uppermost is looked up", caseLookupStacked},
		{"an identity is that of one mount", caseIdentity},
		{"the references of a mount", caseMountRefs},
		{"a missing target is made", caseTargetMade},
		{"a target that was made is removed when the mount fails", caseTargetRemoved},
		{"a target that was there stays when the mount fails", caseTargetStays},
		{"missing parents of the target are made", caseParentsMade},
		{"parents that were made are removed when the mount fails", caseParentsRemoved},
		{"a remount makes nothing", caseRemountMakesNothing},
		{"a target that is a symbolic link is refused", caseTargetSymlink},
		{"a parent of the target that is a symbolic link is refused", caseParentSymlink},
		{"a mount is not found by a path with a symbolic link", caseMountBehindSymlink},
		{"odd names", caseOddNames},
	}
}

func caseTmpfs(b *bench) {
	target := b.dir("target")
	b.mounted(target, false)
	b.tmpfs(target)
	b.mounted(target, true)
	top := b.top(target)
	if top.FSType != "tmpfs" || top.Source != "memory" || top.Root != "/" || top.ReadOnly() {
		b.Fatalf("the table says %+v", top)
	}
	b.writes(target+"/f", "in memory")
	b.must(b.mounter.Unmount(b.Context(), target, plain))
	b.mounted(target, false)
	b.absent(target + "/f")
}

func caseBindDirectory(b *bench) {
	source, target := b.dir("source"), b.dir("target")
	b.writes(source+"/f", "before")
	b.mount(source, target, "bind")
	b.reads(target+"/f", "before")
	b.writes(target+"/f", "after")
	b.reads(source+"/f", "after")
	b.unmountPaths(target)
	b.reads(source+"/f", "after")
}

func caseBindFile(b *bench) {
	source, target := b.file("source", "content"), b.path("target")
	b.mount(source, target, "bind")
	b.mounted(target, true)
	b.reads(target, "content")
	b.unmountPaths(target)
	b.reads(source, "content")
}

func caseBindIsMountPoint(b *bench) {
	source, target := b.dir("source"), b.dir("target")
	b.mount(source, target, "bind")
	b.mounted(target, true)
	b.mounted(source, false)
	b.must(b.world.Mkdir(target+"/sub", 0o755))
	b.mounted(target+"/sub", false)
	_, err := b.mounter.IsMountPoint(b.Context(), target+"/none")
	b.fails(err, fs.ErrNotExist)
	b.unmountPaths(target)
}

func caseBindReadOnly(b *bench) {
	source, target := b.dir("source"), b.dir("target")
	b.writes(source+"/f", "content")
	b.mount(source, target, "bind", "ro")
	if !b.top(target).ReadOnly() {
		b.Fatalf("the table says %+v", b.top(target))
	}
	b.refusesWrite(target+"/f", syscall.EROFS)
	b.refusesWrite(target+"/new", syscall.EROFS)
	b.fails(b.world.Mkdir(target+"/d", 0o755), syscall.EROFS)
	b.fails(b.world.Remove(target+"/f"), syscall.EROFS)
	b.writes(source+"/f", "changed")
	b.reads(target+"/f", "changed")
	b.unmountPaths(target)
}

func caseBindRecursive(b *bench) {
	source := b.dir("source")
	b.must(b.world.Mkdir(source+"/below", 0o755))
	b.tmpfs(source + "/below")
	b.writes(source+"/below/f", "below")
	flat, deep := b.dir("flat"), b.dir("deep")
	b.mount(source, flat, "bind")
	b.absent(flat + "/below/f")
	b.mount(source, deep, "rbind", "ro")
	b.reads(deep+"/below/f", "below")
	b.refusesWrite(deep+"/below/f", syscall.EROFS)
	b.fails(b.mounter.Unmount(b.Context(), deep, plain), syscall.EBUSY)
	b.unmountPaths(flat)
	b.must(b.mounter.Unmount(b.Context(), deep+"/below", plain))
	b.unmountPaths(deep)
	b.reads(source+"/below/f", "below")
	b.must(b.mounter.Unmount(b.Context(), source+"/below", plain))
}

func caseMountOptions(b *bench) {
	source, target, memory := b.dir("source"), b.dir("target"), b.dir("memory")
	b.mount(source, target, "bind", "nosuid", "nodev", "noexec")
	b.tmpfs(memory, "ro", "nosuid", "nodev", "noexec", "size=64k", "mode=0700")
	for _, path := range []string{target, memory} {
		for _, option := range []string{"nosuid", "nodev", "noexec"} {
			if !slices.Contains(b.top(path).Options, option) {
				b.Fatalf("%q lacks %s: %+v", path, option, b.top(path))
			}
		}
	}
	if options := b.top(memory).SuperOptions; !slices.Contains(options, "size=64k") {
		b.Fatalf("the filesystem has options %q, want size=64k among them", options)
	}
	b.refusesWrite(memory+"/f", syscall.EROFS)
	b.unmountPaths(target, memory)
}

// caseIDMappings maps one user, which an ordinary user may do too. A mounter refuses it where it cannot do it.
func caseIDMappings(b *bench) {
	source, target := b.dir("source"), b.path("above/target")
	b.tmpfs(source)
	b.writes(source+"/f", "content")
	one := []mount.IDMapping{{Size: 1}}
	request := mount.Request{Source: source, Target: target, Options: []string{"rbind"}, IDMappings: mount.IDMappings{UIDs: one, GIDs: one}}
	err := b.mounter.Mount(b.Context(), request)
	if errors.Is(err, mount.ErrUnsupported) {
		b.absent(b.path("above"))
		b.unmountPaths(source)
		return
	}
	b.must(err)
	if !slices.Contains(b.top(target).Options, "idmapped") {
		b.Fatalf("it is not id-mapped: %+v", b.top(target))
	}
	b.reads(target+"/f", "content")
	request.Source, request.Target = target, b.path("again")
	b.fails(b.mounter.Mount(b.Context(), request), syscall.EPERM)
	b.absent(request.Target)
	request.Options = []string{"remount", "bind"}
	b.fails(b.mounter.Mount(b.Context(), request), mount.ErrInvalid)
	b.unmountPaths(target, source)
}

func caseAccessTimes(b *bench) {
	target, memory := b.dir("target"), b.dir("memory")
	b.tmpfs(memory, "noatime", "relatime", "atime", "strictatime", "noatime")
	// A bind of the machine's own mounts could not change this in a user namespace.
	b.mount(memory, target, "bind", "noatime", "strictatime", "relatime", "noatime")
	for _, path := range []string{target, memory} {
		options := b.top(path).Options
		if !slices.Contains(options, "noatime") || slices.Contains(options, "relatime") {
			b.Fatalf("%q has options %q, want noatime and not relatime", path, options)
		}
	}
	b.unmountPaths(target, memory)
}

func caseRemount(b *bench) {
	target := b.dir("target")
	b.tmpfs(target, "nosuid")
	b.writes(target+"/f", "content")
	b.mount("", target, "remount", "ro")
	b.refusesWrite(target+"/f", syscall.EROFS)
	b.reads(target+"/f", "content")
	if !slices.Contains(b.top(target).Options, "nosuid") {
		b.Fatalf("the remount has lost nosuid: %+v", b.top(target))
	}
	b.mount("", target, "remount", "rw")
	b.writes(target+"/f", "changed")
	if n := b.countMounts(target); n != 1 {
		b.Fatalf("%d mounts after remounts, want 1", n)
	}
	b.unmountPaths(target)
}

func caseRemountBind(b *bench) {
	source, target := b.dir("source"), b.dir("target")
	b.tmpfs(source)
	b.mount(source, target, "bind")
	b.mount("", target, "remount", "bind", "ro")
	b.refusesWrite(target+"/f", syscall.EROFS)
	b.writes(source+"/f", "content")
	b.mount("", target, "remount", "bind", "rw")
	b.writes(target+"/f", "changed")
	b.unmountPaths(target)
	b.must(b.mounter.Unmount(b.Context(), source, plain))
}

func caseRemountRefused(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	request := mount.Request{Target: target, Options: []string{"remount", "ro", "nosuid", "no-such-option"}}
	b.fails(b.mounter.Mount(b.Context(), request), syscall.EINVAL)
	if top := b.top(target); top.ReadOnly() || slices.Contains(top.Options, "nosuid") {
		b.Fatalf("the table says %+v", top)
	}
	b.writes(target+"/f", "content")
	b.unmountPaths(target)
}

func caseRemountNothing(b *bench) {
	request := mount.Request{Target: b.dir("target"), Options: []string{"remount", "ro"}}
	b.fails(b.mounter.Mount(b.Context(), request), mount.ErrNotMounted)
}

func caseMountRefs(b *bench) {
	source, one, two, other := b.dir("source"), b.dir("one"), b.dir("two"), b.dir("other")
	b.tmpfs(source)
	b.must(b.world.Mkdir(source+"/part", 0o755))
	b.mount(source, one, "bind")
	b.mount(source, two, "bind", "ro")
	b.mount(source+"/part", other, "bind")
	for path, want := range map[string][]string{
		source: {one, two}, one: {source, two}, two: {one, source}, other: nil, b.root: nil, b.path("none"): nil,
	} {
		got, err := b.mounter.GetMountRefs(b.Context(), path)
		b.must(err)
		got = slices.Sorted(slices.Values(got))
		slices.Sort(want)
		if !slices.Equal(got, want) {
			b.Fatalf("references of %q: %q, want %q", path, got, want)
		}
	}
	b.unmountPaths(one, two, other, source)
}

func caseTargetMade(b *bench) {
	source, file := b.dir("source"), b.file("file", "content")
	targets := map[string]bool{b.path("d"): true, b.path("f"): false, b.path("t"): true}
	b.mount(source, b.path("d"), "bind")
	b.mount(file, b.path("f"), "bind")
	b.tmpfs(b.path("t"))
	for path, isDir := range targets {
		if got := b.present(path).IsDir(); got != isDir {
			b.Fatalf("%q is a directory: %v, want %v", path, got, isDir)
		}
		b.must(b.mounter.Unmount(b.Context(), path, plain))
		if got := b.present(path); got.IsDir() != isDir || got.Mode().Perm()&^0o750 != 0 {
			b.Fatalf("%q was made with mode %v", path, got.Mode())
		}
		b.must(b.mounter.RemoveTarget(b.Context(), path))
	}
}

func caseTargetRemoved(b *bench) {
	target := b.path("target")
	bind := mount.Request{Source: b.path("none"), Target: target, Options: []string{"bind"}}
	b.fails(b.mounter.Mount(b.Context(), bind), fs.ErrNotExist)
	b.absent(target)
	unknown := mount.Request{Target: target, FSType: "no-such-filesystem"}
	b.fails(b.mounter.Mount(b.Context(), unknown), mount.ErrUnsupported)
	b.absent(target)
	b.fails(b.mounter.Mount(b.Context(), tmpfs(target, "no-such-option")), syscall.EINVAL)
	b.absent(target)
}

func caseTargetStays(b *bench) {
	target := b.dir("target")
	b.fails(b.mounter.Mount(b.Context(), tmpfs(target, "no-such-option")), syscall.EINVAL)
	b.present(target)
	b.mounted(target, false)
}

func caseExclusive(b *bench) {
	first, second, missing := tmpfs(b.dir("first")), tmpfs(b.path("first/second")), tmpfs(b.path("a/b/missing"))
	for _, request := range []mount.Request{first, second, missing} {
		request.Exclusive = true
		b.must(b.mounter.Mount(b.Context(), request))
		b.writes(request.Target+"/f", "content")
		b.fails(b.mounter.Mount(b.Context(), request), mount.ErrMounted)
		b.reads(request.Target+"/f", "content")
		if n := b.countMounts(request.Target); n != 1 {
			b.Fatalf("%d mounts, want 1", n)
		}
	}
	b.unmountPaths(second.Target, first.Target, missing.Target)
}

func caseParentsMade(b *bench) {
	source, target := b.file("source", "content"), b.path("a/b/target")
	b.mount(source, target, "bind")
	b.reads(target, "content")
	for _, path := range []string{b.path("a"), b.path("a/b")} {
		if got := b.present(path); !got.IsDir() || got.Mode().Perm()&^0o750 != 0 {
			b.Fatalf("%q was made with mode %v", path, got.Mode())
		}
	}
	b.unmountPaths(target)
	b.present(b.path("a/b"))
	b.tmpfs(b.path("a/c/target"))
	b.unmountPaths(b.path("a/c/target"))
	b.fails(b.mounter.Mount(b.Context(), tmpfs(b.file("file", "content")+"/x/target")), syscall.ENOTDIR)
	b.reads(b.path("file"), "content")
}

func caseParentsRemoved(b *bench) {
	b.dir("a")
	b.fails(b.mounter.Mount(b.Context(), tmpfs(b.path("a/b/c/target"), "no-such-option")), syscall.EINVAL)
	b.absent(b.path("a/b"))
	b.present(b.path("a"))
	bind := mount.Request{Source: b.path("none"), Target: b.path("a/b/c/target"), Options: []string{"bind"}}
	b.fails(b.mounter.Mount(b.Context(), bind), fs.ErrNotExist)
	b.absent(b.path("a/b"))
	b.present(b.path("a"))
}

func caseRemountMakesNothing(b *bench) {
	request := mount.Request{Target: b.path("a/target"), Options: []string{"remount", "ro"}}
	b.fails(b.mounter.Mount(b.Context(), request), fs.ErrNotExist)
	b.absent(b.path("a"))
}

func caseTargetSymlink(b *bench) {
	victim, link := b.dir("victim"), b.path("link")
	b.must(b.world.Symlink(victim, link))
	b.fails(b.mounter.Mount(b.Context(), tmpfs(link)), syscall.ELOOP)
	b.mounted(victim, false)
	b.tmpfs(victim)
	b.fails(b.mounter.Unmount(b.Context(), link, plain), mount.ErrNotMounted)
	b.mounted(victim, true)
	b.fails(b.mounter.RemoveTarget(b.Context(), link), syscall.ENOTDIR)
	b.present(link)
	b.unmountPaths(victim)
}

func caseParentSymlink(b *bench) {
	victim, link := b.dir("victim"), b.path("link")
	b.must(b.world.Symlink(victim, link))
	b.fails(b.mounter.Mount(b.Context(), tmpfs(link+"/target")), syscall.ELOOP)
	b.absent(victim + "/target")
	b.must(b.world.Mkdir(victim+"/target", 0o755))
	b.fails(b.mounter.RemoveTarget(b.Context(), link+"/target"), syscall.ELOOP)
	b.present(victim + "/target")
}

func caseMountBehindSymlink(b *bench) {
	ctx, dir, link := b.Context(), b.dir("dir"), b.path("link")
	b.must(b.world.Symlink(dir, link))
	for _, path := range []string{dir + "/target", b.path("other")} {
		b.mount(dir, path, "bind")
	}
	_, err := b.mounter.IsMountPoint(ctx, link+"/target")
	b.fails(err, syscall.ELOOP)
	b.fails(b.mounter.Unmount(ctx, link+"/target", plain), syscall.ELOOP)
	refs, err := b.mounter.GetMountRefs(ctx, link+"/target")
	b.must(err)
	if len(refs) > 0 {
		b.Fatalf("references of a path with a symbolic link: %q, want none", refs)
	}
	is, err := b.mounter.IsMountPoint(ctx, link)
	b.must(err)
	if is {
		b.Fatal("a symbolic link is no mount point")
	}
	b.mounted(dir+"/target", true)
	b.unmountPaths(dir+"/target", b.path("other"))
}

func caseOddNames(b *bench) {
	for _, name := range []string{
		"a blank", "new\nline", "a\ttab", `back\slash`, `\040`, "x (deleted)", "x//deleted", "#hash", "-rf", "ü\xff", "a,b", " ",
	} {
		source, target := b.dir("s"+strings.ReplaceAll(name, "/", "")), b.path(strings.ReplaceAll(name, "/", ""))
		b.mount(source, target, "bind")
		b.mounted(target, true)
		b.writes(source+"/f", "content")
		b.reads(target+"/f", "content")
		b.unmountPaths(target)
	}
}

func requestCases() []testCase {
	return []testCase{
		{"malformed requests are refused", caseInvalid},
		{"malformed paths are refused", caseInvalidPaths},
		{"a user cannot say what kind of mount it is", caseUserOptions},
		{"a user cannot undo what the policy sets", caseUserOptionsAreWeaker},
		{"an SELinux context is there or refused", caseSELinuxContext},
		{"errors hold no secret", caseSecrets},
		{"nothing is begun when the context has ended", caseCancelled},
	}
}

func caseInvalid(b *bench) {
	source, target := b.dir("source"), b.path("target")
	for name, request := range map[string]mount.Request{
		"comma":             tmpfs(target, "size=1m,ro"),
		"newline":           tmpfs(target, "size=1m\nro"),
		"NUL":               tmpfs(target, "size=1m\x00"),
		"empty option":      tmpfs(target, ""),
		"secret newline":    {Target: target, FSType: "tmpfs", Sensitive: []string{"password=a\nb"}},
		"no type":           {Source: source, Target: target},
		"relative target":   tmpfs("target"),
		"target with ..":    tmpfs(b.root + "/source/../target"),
		"source with ..":    {Source: source + "/../source", Target: target, Options: []string{"bind"}},
		"target with NUL":   tmpfs(target + "\x00"),
		"no target":         tmpfs(""),
		"root":              tmpfs("/"),
		"relative bind":     {Source: "source", Target: target, Options: []string{"bind"}},
		"bind with type":    {Source: source, Target: target, FSType: "tmpfs", Options: []string{"bind"}},
		"bind with data":    {Source: source, Target: target, Options: []string{"bind", "size=1m"}},
		"type with slash":   {Target: target, FSType: "../tmpfs"},
		"type with newline": {Target: target, FSType: "tmp\nfs"},
		"user's comma":      {Target: target, FSType: "tmpfs", UserOptions: []string{"size=1m,suid"}},
		"user's newline":    {Target: target, FSType: "tmpfs", UserOptions: []string{"size=1m\nsuid"}},
		"label of a bind":   {Source: source, Target: target, Options: []string{"bind"}, SELinuxContext: "u:r:t:s0"},
		"label of a change": {Target: target, Options: []string{"remount", "ro"}, SELinuxContext: "u:r:t:s0"},
		"label with quotes": {Target: target, FSType: "tmpfs", SELinuxContext: `u:r:t:s0",suid,x="`},
		"label, newline":    {Target: target, FSType: "tmpfs", SELinuxContext: "u:r:t\n:s0"},
	} {
		if err := b.mounter.Mount(b.Context(), request); !errors.Is(err, mount.ErrInvalid) {
			b.Errorf("%s: got error %v, want one that matches ErrInvalid", name, err)
		}
	}
	b.absent(target)
}

func caseInvalidPaths(b *bench) {
	ctx := b.Context()
	for _, path := range []string{"", "relative", "/a/../b", "/..", "/a\x00b"} {
		b.fails(b.mounter.Unmount(ctx, path, plain), mount.ErrInvalid)
		b.fails(b.mounter.RemoveTarget(ctx, path), mount.ErrInvalid)
		_, err := b.mounter.IsMountPoint(ctx, path)
		b.fails(err, mount.ErrInvalid)
		_, err = b.mounter.GetMountRefs(ctx, path)
		b.fails(err, mount.ErrInvalid)
		_, err = b.mounter.Lookup(ctx, path)
		b.fails(err, mount.ErrInvalid)
	}
	b.fails(b.mounter.Unmount(ctx, "/", plain), mount.ErrInvalid)
	b.fails(b.mounter.RemoveTarget(ctx, "/"), mount.ErrInvalid)
}

func caseSecrets(b *bench) {
	for _, secret := range []string{"size=canary-secret", "canary-secret"} {
		request := tmpfs(b.path("target"))
		request.Sensitive = []string{secret}
		err := b.mounter.Mount(b.Context(), request)
		b.fails(err, syscall.EINVAL)
		if strings.Contains(err.Error(), "canary") {
			b.Errorf("the error holds the secret %q: %v", secret, err)
		}
	}
}

func caseCancelled(b *bench) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	target := b.path("target")
	check := func(err error) {
		b.Helper()
		b.fails(err, context.Canceled)
		b.fails(err, mount.ErrTransient)
	}
	check(b.mounter.Mount(ctx, tmpfs(target)))
	b.absent(target)
	b.dir("target")
	check(b.mounter.RemoveTarget(ctx, target))
	b.tmpfs(target)
	check(b.mounter.Unmount(ctx, target, plain))
	_, err := b.mounter.IsMountPoint(ctx, target)
	check(err)
	_, err = b.mounter.List(ctx)
	check(err)
	_, err = b.mounter.GetMountRefs(ctx, target)
	check(err)
	_, err = b.mounter.Lookup(ctx, target)
	check(err)
	b.mounted(target, true)
	b.unmountPaths(target)
}

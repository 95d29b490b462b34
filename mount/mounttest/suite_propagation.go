package mounttest

import (
	"slices"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// The cases of propagation; see mount_namespaces(7). What a copy has for propagation of its own is seen only where every way
// to mount gives the same: with mount(2) a bind joins the peer group of its source before it leaves it again.

func propagationCases() []testCase {
	return []testCase{
		{"a mount is private unless the request says otherwise", caseAlwaysPrivate},
		{"a shared bind joins the peer group of its source", casePeers},
		{"peers show each other's mounts", casePeersShow},
		{"a slave shows the mounts of its master and not the reverse", caseSlave},
		{"a slave may be shared too", caseSlaveShared},
		{"a slave whose peer group is gone has the master of that", caseSlaveInherited},
		{"a private mount shows no mounts of others", casePrivate},
		{"an unbindable mount is not bound", caseUnbindable},
		{"an unbindable bind is made below a shared mount", caseUnbindableBelow},
		{"options may be for the mounts below and propagation not", caseOptionsBelow},
		{"propagation may be for the mounts below too", casePropagationBelow},
		{"a tree that is mounted appears with what is below", caseTreePropagates},
		{"a peer that shows a part has the mounts of that part", casePartOfPeer},
		{"a mount appears beneath what covers its place", caseCovered},
		{"a copy that bears another mount stays", caseCopyBears},
		{"a tree that is detached goes everywhere", caseTreeDetached},
	}
}

// field returns the optional field of the uppermost mount that begins with the word, without that: the number of a group.
func (b *bench) field(name, word string) string {
	b.Helper()
	for _, field := range b.lookedUp(name).Propagation {
		if rest, ok := strings.CutPrefix(field, word); ok {
			return strings.TrimPrefix(rest, ":")
		}
	}
	return ""
}

// propagates checks the optional fields of the mounts at the paths, without the numbers.
func (b *bench) propagates(want string, names ...string) {
	b.Helper()
	for _, name := range names {
		var words []string
		for _, field := range b.lookedUp(name).Propagation {
			word, _, _ := strings.Cut(field, ":")
			words = append(words, word)
		}
		if got := strings.Join(words, " "); got != want {
			b.Fatalf("propagation of %q is %q, want %q", name, got, want)
		}
	}
}

// same checks that one field of one mount names the same group as another one of another.
func (b *bench) same(name, word, other, otherWord string) {
	b.Helper()
	group, otherGroup := b.field(name, word), b.field(other, otherWord)
	if group == "" || group != otherGroup {
		b.Fatalf("%q has %s:%s, %q has %s:%s, want the same", name, word, group, other, otherWord, otherGroup)
	}
}

// shared mounts a filesystem in memory that is shared and has a directory "sub".
func (b *bench) shared(name string) string {
	b.Helper()
	target := b.dir(name)
	b.tmpfs(target, "shared")
	b.must(b.world.Mkdir(target+"/sub", 0o755))
	return target
}

// bound binds source to a new directory.
func (b *bench) bound(source, name string, options ...string) string {
	b.Helper()
	target := b.dir(name)
	b.mount(source, target, append(options, "bind")...)
	return target
}

// becomes changes the propagation of a mount.
func (b *bench) becomes(target, propagation string) {
	b.Helper()
	b.mount("", target, "remount", propagation)
}

// allMounted checks of each path whether it is a mount point.
func (b *bench) allMounted(want bool, names ...string) {
	b.Helper()
	for _, name := range names {
		b.mounted(name, want)
	}
}

// unmounted takes off one mount after the other and leaves the directories.
func (b *bench) unmounted(names ...string) {
	b.Helper()
	for _, name := range names {
		b.must(b.mounter.Unmount(b.Context(), name, plain))
	}
}

func caseAlwaysPrivate(b *bench) {
	source := b.shared("source")
	bind, memory := b.bound(source, "bind"), b.dir("memory")
	b.tmpfs(memory)
	b.tmpfs(source + "/sub")
	b.propagates("", bind, memory, source+"/sub")
	b.propagates("shared", source)
	b.unmounted(source+"/sub", memory, bind, source)
}

func casePeers(b *bench) {
	source, other := b.shared("source"), b.shared("other")
	one := b.bound(source, "one", "shared")
	two := b.bound(one+"/sub", "two", "shared")
	b.propagates("shared", source, one, two)
	b.same(source, "shared", one, "shared")
	b.same(source, "shared", two, "shared")
	if b.field(other, "shared") == b.field(source, "shared") {
		b.Fatalf("two filesystems are in one peer group: %+v", b.lookedUp(other))
	}
	b.becomes(one, "private")
	b.propagates("", one)
	b.becomes(one, "shared")
	if b.field(one, "shared") == b.field(source, "shared") {
		b.Fatalf("a mount is in the peer group that it has left: %+v", b.lookedUp(one))
	}
	b.unmounted(two, one, source, other)
}

func casePeersShow(b *bench) {
	source := b.shared("source")
	peer := b.bound(source, "peer", "shared")
	for _, names := range [][2]string{{source, peer}, {peer, source}} {
		here, there := names[0]+"/sub", names[1]+"/sub"
		b.tmpfs(here, "shared", "nodev")
		b.propagates("shared", here, there)
		b.same(here, "shared", there, "shared")
		b.writes(here+"/f", "content")
		b.reads(there+"/f", "content")
		b.unmounted(there)
		b.allMounted(false, here, there)
		b.tmpfs(here)
		b.propagates("", here)
		b.propagates("shared", there)
		b.unmounted(here)
		b.allMounted(false, here, there)
	}
	b.unmounted(peer, source)
}

func caseSlave(b *bench) {
	master := b.shared("master")
	slave := b.bound(master, "slave", "slave")
	b.propagates("master", slave)
	b.same(slave, "master", master, "shared")
	b.tmpfs(slave + "/sub")
	b.mounted(master+"/sub", false)
	b.unmounted(slave + "/sub")
	b.tmpfs(master+"/sub", "shared")
	b.propagates("master", slave+"/sub")
	b.same(slave+"/sub", "master", master+"/sub", "shared")
	b.unmounted(slave + "/sub")
	b.mounted(master+"/sub", true)
	b.unmounted(master + "/sub")
	b.tmpfs(master+"/sub", "shared")
	b.unmounted(master + "/sub")
	b.mounted(slave+"/sub", false)
	b.unmounted(slave, master)
}

func caseSlaveShared(b *bench) {
	master := b.shared("master")
	slave := b.bound(master, "slave", "slave")
	b.becomes(slave, "shared")
	peer := b.bound(slave, "peer", "shared")
	b.propagates("shared master", slave, peer)
	b.same(slave, "shared", peer, "shared")
	b.same(peer, "master", master, "shared")
	b.tmpfs(slave + "/sub")
	b.mounted(peer+"/sub", true)
	b.mounted(master+"/sub", false)
	b.unmounted(slave + "/sub")
	b.mounted(peer+"/sub", false)
	b.tmpfs(master+"/sub", "shared")
	b.propagates("shared master", slave+"/sub", peer+"/sub")
	b.same(slave+"/sub", "shared", peer+"/sub", "shared")
	b.same(slave+"/sub", "master", master+"/sub", "shared")
	b.unmounted(master + "/sub")
	b.allMounted(false, slave+"/sub", peer+"/sub")
	b.unmounted(peer, slave, master)
}

func caseSlaveInherited(b *bench) {
	master := b.shared("master")
	middle := b.bound(master, "middle", "slave")
	b.becomes(middle, "shared")
	last := b.bound(middle, "last", "slave")
	b.same(last, "master", middle, "shared")
	b.unmounted(middle)
	b.same(last, "master", master, "shared")
	peer := b.bound(master, "peer", "shared")
	b.becomes(master, "slave")
	b.propagates("master", master, last)
	b.same(master, "master", peer, "shared")
	b.same(last, "master", peer, "shared")
	b.becomes(peer, "private")
	b.propagates("", peer, last, master)
	b.unmounted(peer, last, master)
}

func casePrivate(b *bench) {
	source := b.shared("source")
	private := b.bound(source, "private", "private")
	b.tmpfs(source + "/sub")
	b.mounted(private+"/sub", false)
	b.unmounted(source + "/sub")
	b.tmpfs(private + "/sub")
	b.mounted(source+"/sub", false)
	b.unmounted(private+"/sub", private, source)
}

func caseUnbindable(b *bench) {
	source, target := b.dir("source"), b.path("target")
	b.tmpfs(source)
	b.tmpfs(source + "/hidden")
	b.tmpfs(source + "/hidden/deep")
	b.tmpfs(source + "/shown")
	b.becomes(source+"/hidden", "unbindable")
	b.propagates("unbindable", source+"/hidden")
	request := mount.Request{Source: source + "/hidden", Target: target, Options: []string{"bind"}}
	b.fails(b.mounter.Mount(b.Context(), request), syscall.EINVAL)
	b.absent(target)
	b.mount(source, target, "rbind")
	b.allMounted(true, target, target+"/shown")
	b.mounted(target+"/hidden", false)
	b.absent(target + "/hidden/deep")
	b.becomes(source+"/hidden", "shared")
	b.propagates("shared", source+"/hidden")
	b.unmounted(target+"/shown", target)
	b.unmounted(source+"/shown", source+"/hidden/deep", source+"/hidden", source)
}

func caseUnbindableBelow(b *bench) {
	source, master := b.dir("source"), b.shared("master")
	slave := b.bound(master, "slave", "slave")
	b.tmpfs(source)
	b.tmpfs(source + "/below")
	for _, kind := range []string{"bind", "rbind"} {
		b.mount(source, master+"/sub", kind, "unbindable")
		b.propagates("unbindable", master+"/sub")
		b.mounted(slave+"/sub", true)
		if kind == "rbind" {
			b.propagates("unbindable", master+"/sub/below")
			b.unmounted(master+"/sub/below", slave+"/sub/below") // neither propagates
		}
		b.unmounted(master + "/sub")
		b.mounted(slave+"/sub", false)
	}
	b.tmpfs(master+"/sub", "unbindable")
	b.propagates("unbindable", master+"/sub")
	b.unmounted(master+"/sub", slave, master, source+"/below", source)
}

func caseOptionsBelow(b *bench) {
	top := b.dir("top")
	b.tmpfs(top)
	b.tmpfs(top + "/below")
	b.mount("", top, "remount", "rro", "shared")
	for _, name := range []string{top, top + "/below"} {
		if m := b.lookedUp(name); !slices.Contains(m.Options, "ro") {
			b.Fatalf("%q has the options %q, want ro", name, m.Options)
		}
	}
	b.propagates("shared", top)
	b.propagates("", top+"/below")
	b.mount("", top, "remount", "rrw", "rshared")
	b.propagates("shared", top, top+"/below")
	b.mount("", top, "remount", "ro", "rprivate")
	b.propagates("", top, top+"/below")
	b.unmounted(top+"/below", top)
}

func casePropagationBelow(b *bench) {
	source, target := b.dir("source"), b.dir("target")
	b.tmpfs(source)
	b.tmpfs(source + "/below")
	b.becomes(source, "shared")
	b.propagates("", source+"/below")
	b.becomes(source, "rshared")
	b.propagates("shared", source, source+"/below")
	b.mount(source, target, "rbind", "rslave")
	for _, name := range []string{"", "/below"} {
		b.propagates("master", target+name)
		b.same(target+name, "master", source+name, "shared")
	}
	b.becomes(target, "private")
	b.propagates("", target)
	b.propagates("master", target+"/below")
	b.becomes(target, "rprivate")
	b.propagates("", target+"/below")
	b.unmounted(target+"/below", target, source+"/below", source)
}

func caseTreePropagates(b *bench) {
	source := b.shared("source")
	peer, slave := b.bound(source, "peer", "shared"), b.bound(source, "slave", "slave")
	tree := b.dir("tree")
	b.tmpfs(tree)
	b.tmpfs(tree + "/below")
	b.writes(tree+"/below/f", "content")
	b.mount(tree, source+"/sub", "rbind", "shared")
	for _, name := range []string{source, peer, slave} {
		b.reads(name+"/sub/below/f", "content")
	}
	b.propagates("shared", source+"/sub/below", peer+"/sub/below")
	b.propagates("master", slave+"/sub", slave+"/sub/below")
	b.unmounted(source + "/sub/below")
	b.allMounted(true, peer+"/sub", slave+"/sub")
	b.allMounted(false, peer+"/sub/below", slave+"/sub/below")
	b.unmounted(peer + "/sub")
	b.allMounted(false, source+"/sub", slave+"/sub")
	b.unmounted(tree+"/below", tree, slave, peer, source)
}

func casePartOfPeer(b *bench) {
	source := b.shared("source")
	b.must(b.world.Mkdir(source+"/sub/deep", 0o755))
	b.must(b.world.Mkdir(source+"/subway", 0o755))
	part := b.bound(source+"/sub", "part", "shared")
	b.tmpfs(source + "/subway")
	refs, err := b.mounter.GetMountRefs(b.Context(), source+"/subway")
	b.must(err)
	if len(refs) > 0 {
		b.Fatalf("what is mounted outside of the part is also at %q", refs)
	}
	b.tmpfs(source+"/sub/deep", "shared")
	b.same(part+"/deep", "shared", source+"/sub/deep", "shared")
	b.unmounted(part + "/deep")
	b.mounted(source+"/sub/deep", false)
	b.unmounted(source+"/subway", part, source)
}

func caseCovered(b *bench) {
	master := b.shared("master")
	slave := b.bound(master, "slave", "slave")
	b.tmpfs(slave + "/sub")
	b.writes(slave+"/sub/f", "the slave's")
	b.tmpfs(master+"/sub", "shared")
	b.writes(master+"/sub/f", "the master's")
	b.reads(slave+"/sub/f", "the slave's")
	if n := b.countMounts(slave + "/sub"); n != 2 {
		b.Fatalf("%d mounts at the slave, want 2", n)
	}
	b.unmounted(master + "/sub")
	b.reads(slave+"/sub/f", "the slave's")
	if n := b.countMounts(slave + "/sub"); n != 1 {
		b.Fatalf("%d mounts at the slave, want 1", n)
	}
	b.unmounted(slave+"/sub", slave, master)
}

func caseCopyBears(b *bench) {
	master := b.shared("master")
	slave := b.bound(master, "slave", "slave")
	b.tmpfs(master+"/sub", "shared")
	b.tmpfs(slave + "/sub/inner")
	b.unmounted(master + "/sub")
	b.allMounted(false, master+"/sub")
	b.allMounted(true, slave+"/sub", slave+"/sub/inner")
	b.propagates("", slave+"/sub")
	b.unmounted(slave+"/sub/inner", slave+"/sub", slave, master)
}

func caseTreeDetached(b *bench) {
	master := b.shared("master")
	slave := b.bound(master, "slave", "slave")
	for _, name := range []string{"/sub", "/sub/deep", "/sub/deep/deeper"} {
		b.tmpfs(master+name, "shared")
	}
	b.allMounted(true, slave+"/sub", slave+"/sub/deep", slave+"/sub/deep/deeper")
	b.must(b.mounter.Unmount(b.Context(), master+"/sub", mount.UnmountOptions{Lazy: true}))
	table, err := b.mounter.List(b.Context())
	b.must(err)
	if slices.ContainsFunc(table, func(m mount.MountPoint) bool { return below(m.Path, master) || below(m.Path, slave) }) {
		b.Fatalf("something is left: %+v", table)
	}
	b.unmounted(slave, master)
}

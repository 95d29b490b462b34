package mounttest

import (
	"reflect"

	"github.com/volumekit/volumekit/mount"
)

// lookedUp returns what Lookup says of a path, and checks that the table says the same.
func (b *bench) lookedUp(name string) mount.MountPoint {
	b.Helper()
	found, err := b.mounter.Lookup(b.Context(), name)
	b.must(err)
	if top := b.top(name); !reflect.DeepEqual(found, top) {
		b.Fatalf("Lookup(%q) = %+v, the table says %+v", name, found, top)
	}
	return found
}

func (b *bench) notFound(name string) {
	b.Helper()
	_, err := b.mounter.Lookup(b.Context(), name)
	b.fails(err, mount.ErrNotMounted)
}

func caseLookup(b *bench) {
	source, target, plain := b.dir("source"), b.dir("target"), b.dir("plain")
	b.notFound(source)
	b.tmpfs(source, "size=64k", "nodev")
	b.must(b.world.Mkdir(source+"/part", 0o755))
	b.mount(source+"/part", target, "bind", "ro", "nosuid")
	memory, part := b.lookedUp(source), b.lookedUp(target)
	if memory.Source != "memory" || memory.FSType != "tmpfs" || memory.Root != "/" || memory.ReadOnly() {
		b.Fatalf("Lookup says %+v", memory)
	}
	if part.Source != "memory" || part.FSType != "tmpfs" || part.Root != "/part" || !part.ReadOnly() {
		b.Fatalf("Lookup says %+v", part)
	}
	for _, path := range []string{plain, source + "/part", target + "/none", b.path("none/none"), b.root} {
		b.notFound(path)
	}
	b.must(b.world.Symlink(target, b.path("link")))
	b.notFound(b.path("link"))
	b.mount("", target, "remount", "bind", "rw")
	if now := b.lookedUp(target); now.ReadOnly() || now.ID != part.ID {
		b.Fatalf("after a remount Lookup says %+v", now)
	}
	b.unmountPaths(target, source)
	b.notFound(target)
}

func caseLookupStacked(b *bench) {
	target := b.dir("target")
	b.tmpfs(target)
	below := b.lookedUp(target)
	b.tmpfs(target)
	above := b.lookedUp(target)
	if above.ID == below.ID || above.ParentID != below.ID {
		b.Fatalf("Lookup says %+v, and below %+v", above, below)
	}
	b.unmountPaths(target)
}

func caseIdentity(b *bench) {
	one, two := b.dir("one"), b.dir("two")
	b.tmpfs(one)
	b.mount(one, two, "bind")
	first, second := b.lookedUp(one), b.lookedUp(two)
	if !first.Identity().Is(first) || first.Identity().Is(second) || second.Identity().Is(first) {
		b.Fatalf("the identities %+v and %+v are not those of two mounts", first.Identity(), second.Identity())
	}
	b.mount("", one, "remount", "bind", "ro")
	if now := b.lookedUp(one); !first.Identity().Is(now) || !first.Identity().FlagsChanged(now) {
		b.Fatalf("%+v was remounted and is now %+v", first, now)
	}
	b.must(b.mounter.Unmount(b.Context(), two, plain))
	b.mount(one, two, "bind")
	if again := b.lookedUp(two); again.UniqueID != 0 && second.Identity().Is(again) {
		b.Fatalf("%+v is taken for %+v, which is gone", again, second)
	}
	b.unmountPaths(two, one)
}

package bench

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/kubernetes/pkg/volume/util/fs"
	k8smount "k8s.io/mount-utils"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume/ownership"
)

// TestDiskUsageAgrees: all count the same bytes and, where they count them, the same inodes.
func TestDiskUsageAgrees(t *testing.T) {
	dir := tree(t, treeCases[0])
	expected, err := fs.DiskUsage(dir)
	must(t, err)
	for _, m := range measurers(t, limits.WalkOptions{Workers: 1}, limits.WalkOptions{Workers: 3, RawSyscalls: true}) {
		got, err := m.measure(dir)
		must(t, err)
		if got.Bytes != expected.Bytes || m.name != "du" && got.Inodes != expected.Inodes {
			t.Errorf("%s: %+v, k8s: %+v", m.name, got, expected)
		}
	}
}

// TestOnlyKubernetesStopsAtAForeignFileAgrees: where a file of another filesystem is mounted in a directory, a secret
// say, Kubernetes drops the rest of the directory. Everybody else agrees.
func TestOnlyKubernetesStopsAtAForeignFileAgrees(t *testing.T) {
	mounttest.RequireMounts(t)
	dir, other := t.TempDir(), t.TempDir()
	must(t, unix.Mount("tmpfs", other, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(other, unix.MNT_DETACH)) })
	for _, p := range []string{other + "/x", dir + "/a", dir + "/b", dir + "/c"} {
		must(t, os.WriteFile(p, []byte("data"), 0o644))
	}
	must(t, unix.Mount(other+"/x", dir+"/a", "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir+"/a", unix.MNT_DETACH)) })
	for _, m := range measurers(t, limits.WalkOptions{Workers: 2}) {
		got, err := m.measure(dir)
		must(t, err)
		t.Logf("a directory and 2 files of its own filesystem: %s counts %d inodes, %d bytes", m.name, got.Inodes, got.Bytes)
		if m.name != "k8s" && m.name != "du" && got.Inodes != 3 {
			t.Errorf("%s is wrong", m.name)
		}
	}
}

// TestOwnershipAgrees: all leave the same modes and groups, and find nothing to do then.
func TestOwnershipAgrees(t *testing.T) {
	mounttest.RequireRoot(t)
	dir := tree(t, treeCases[0])
	reset(t, dir)
	must(t, k8sOwnership(dir, nil))
	expected := treeOfOwners(t, dir)
	for _, o := range owners(t) {
		if strings.HasPrefix(o.name, "chgrp") {
			continue // they set no setgid bit on directories
		}
		reset(t, dir)
		must(t, o.give(dir))
		if got := treeOfOwners(t, dir); got != expected {
			t.Errorf("%s leaves other modes or groups than k8s does", o.name)
		}
	}
	must(t, wantNothing(t, dir))
	again, err := limits.ApplyGroup(dir, group, limits.WalkOptions{Workers: 2})
	must(t, err)
	if again.Chowned+again.Chmodded != 0 {
		t.Errorf("there was something left to change: %+v", again)
	}
	reset(t, dir)
}

// wantNothing is an error when ours finds something to change.
func wantNothing(t *testing.T, dir string) error {
	g := int64(group)
	report, err := ownership.Apply(t.Context(), dir, ownership.Options{Group: &g})
	return want(report.GroupChanged+report.ModeChanged == 0 && report.Complete, err)
}

// TestMountTableAgrees: all know the same mounts.
func TestMountTableAgrees(t *testing.T) {
	mounttest.RequireMounts(t)
	theirs, err := k8smount.New("").List()
	must(t, err)
	ours, err := mount.New(mount.Options{}).List(t.Context())
	must(t, err)
	var table limits.MountTable
	must(t, table.Load())
	if len(theirs) != len(ours) || len(theirs) != len(table.Rows) {
		t.Errorf("k8s knows %d mounts, ours %d, limit %d", len(theirs), len(ours), len(table.Rows))
	}
	for _, m := range theirs {
		if strings.Contains(m.Path, `\`) {
			continue // Kubernetes does not decode what the kernel escapes
		}
		i := slices.IndexFunc(ours, func(o mount.MountPoint) bool { return o.Path == m.Path && o.FSType == m.Type })
		if i < 0 {
			t.Errorf("ours lacks %+v", m)
		}
	}
	ids, err := limits.ListMounts(nil)
	t.Logf("listmount: %d mounts, %v", len(ids), err)
}

// TestFlagsOfAMountAgrees: a table that is kept must not be kept when the flags of a mount change, which no mount and no
// unmount tells of.
func TestFlagsOfAMountAgrees(t *testing.T) {
	mounttest.RequireMounts(t)
	dir := t.TempDir()
	must(t, limits.Tmpfs(dir))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	m := mount.New(mount.Options{})
	for range 3 {
		for _, flags := range []uintptr{unix.MS_RDONLY, 0} {
			must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""))
			for name, readOnly := range map[string]bool{"List": inList(t, m, dir).ReadOnly(), "Lookup": lookUp(t, m, dir).ReadOnly()} {
				if readOnly != (flags != 0) {
					t.Errorf("%s says read-only=%v, it is %v", name, readOnly, flags != 0)
				}
			}
		}
	}
}

func inList(t *testing.T, m *mount.Mounter, path string) mount.MountPoint {
	t.Helper()
	list, err := m.List(t.Context())
	must(t, err)
	i := slices.IndexFunc(list, func(o mount.MountPoint) bool { return o.Path == path })
	must(t, want(i >= 0, nil))
	return list[i]
}

func lookUp(t *testing.T, m *mount.Mounter, path string) mount.MountPoint {
	t.Helper()
	found, err := m.Lookup(t.Context(), path)
	must(t, err)
	return found
}

// TestRefsAgrees: all know the same other places of a mount.
func TestRefsAgrees(t *testing.T) {
	mounttest.RequireMounts(t)
	base := t.TempDir()
	source := filepath.Join(base, "source")
	must(t, os.Mkdir(source, 0o755))
	must(t, limits.Tmpfs(source))
	t.Cleanup(func() { must(t, unix.Unmount(source, unix.MNT_DETACH)) })
	for _, name := range []string{"a", "b", "c"} {
		p := filepath.Join(base, name)
		must(t, os.Mkdir(p, 0o755))
		must(t, limits.Bind(source, p, 0))
		t.Cleanup(func() { must(t, unix.Unmount(p, unix.MNT_DETACH)) })
	}
	theirs, err := k8smount.New("").GetMountRefs(source)
	must(t, err)
	ours, err := mount.New(mount.Options{}).GetMountRefs(t.Context(), source)
	must(t, err)
	slices.Sort(theirs)
	ours = slices.Sorted(slices.Values(ours)) // what GetMountRefs returns is shared
	if !slices.Equal(theirs, ours) || len(ours) != 3 {
		t.Errorf("k8s: %q, ours: %q", theirs, ours)
	}
}

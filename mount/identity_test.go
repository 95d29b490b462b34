package mount_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/volumekit/volumekit/mount"
)

func TestIdentity(t *testing.T) {
	mp := mount.MountPoint{
		UniqueID: 77, ID: 3, Major: 8, Minor: 1, Root: "/part", Path: "/mnt", Source: "/dev/sda1", FSType: "ext4",
		Options: []string{"ro", "nosuid"},
	}
	assert.Equal(t, mount.Identity{
		UniqueID: 77, ID: 3, Major: 8, Minor: 1, Root: "/part", Source: "/dev/sda1", FSType: "ext4", Flags: "ro,nosuid",
	}, mp.Identity())
	for name, tc := range map[string]struct {
		change func(*mount.MountPoint)
		want   bool // of a mount with unique id
		old    bool // of one without
	}{
		"nothing":        {func(*mount.MountPoint) {}, true, true},
		"moved":          {func(m *mount.MountPoint) { m.Path = "/other" }, true, true},
		"remounted":      {func(m *mount.MountPoint) { m.Options = []string{"rw"} }, true, true},
		"other":          {func(m *mount.MountPoint) { m.UniqueID = 78 }, false, true},
		"other id":       {func(m *mount.MountPoint) { m.ID = 4 }, true, false},
		"other major":    {func(m *mount.MountPoint) { m.Major = 7 }, true, false},
		"other minor":    {func(m *mount.MountPoint) { m.Minor = 7 }, true, false},
		"other root":     {func(m *mount.MountPoint) { m.Root = "/" }, true, false},
		"other fs":       {func(m *mount.MountPoint) { m.FSType = "xfs" }, true, false},
		"other source":   {func(m *mount.MountPoint) { m.Source = "" }, true, false},
		"unknown unique": {func(m *mount.MountPoint) { m.UniqueID = 0 }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := mp
			tc.change(&now)
			assert.Equal(t, tc.want, mp.Identity().Is(now))
			known, old := mp.Identity(), now
			known.UniqueID = 0
			assert.Equal(t, tc.old, known.Is(now), "the identity knows no unique id")
			old.UniqueID = 0
			assert.Equal(t, tc.old, mp.Identity().Is(old), "the kernel has no unique id")
			assert.True(t, mount.Identity{}.Is(now), "nothing is known")
		})
	}
}

func TestIdentityKnowsInPart(t *testing.T) {
	mp := mount.MountPoint{UniqueID: 77, ID: 3, Minor: 1, Root: "/part", FSType: "tmpfs", Source: "memory"}
	for _, known := range []mount.Identity{
		{ID: 3}, {Minor: 1}, {Root: "/part"}, {FSType: "tmpfs"}, {Source: "memory"}, {UniqueID: 77, ID: 9},
	} {
		assert.True(t, known.Is(mp), "%+v", known)
	}
	for _, known := range []mount.Identity{
		{ID: 4}, {Minor: 2}, {Major: 1, Minor: 1}, {Root: "/"}, {FSType: "ext4"}, {Source: "m"}, {UniqueID: 7, ID: 3},
	} {
		assert.False(t, known.Is(mp), "%+v", known)
	}
}

func TestIdentityFlags(t *testing.T) {
	mp := mount.MountPoint{Options: []string{"rw", "nosuid"}}
	known := mp.Identity()
	assert.False(t, known.FlagsChanged(mp))
	assert.False(t, mount.Identity{}.FlagsChanged(mp), "they are not known")
	mp.Options = []string{"ro", "nosuid"}
	assert.True(t, known.FlagsChanged(mp))
	assert.True(t, known.Is(mp))
}

package loop_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
)

func TestWhatAMountShows(t *testing.T) {
	device := loop.Device{Path: "/dev/loop3", Number: 3, Major: 7, Minor: 3}
	for name, c := range map[string]struct {
		there    mount.MountPoint
		its, any bool
	}{
		"the whole filesystem":      {mount.MountPoint{Major: 7, Minor: 3, Root: "/", FSType: "ext4"}, true, true},
		"a part":                    {mount.MountPoint{Major: 7, Minor: 3, Root: "/a", FSType: "ext4"}, false, false},
		"another loop device":       {mount.MountPoint{Major: 7, Minor: 4, Root: "/", FSType: "ext4"}, false, true},
		"a disk":                    {mount.MountPoint{Major: 8, Minor: 3, Root: "/", FSType: "ext4", Source: "/dev/loop3"}, false, false},
		"a btrfs":                   {mount.MountPoint{Minor: 45, Root: "/", FSType: "btrfs", Source: "/dev/loop3"}, true, true},
		"a btrfs of another device": {mount.MountPoint{Minor: 45, Root: "/", FSType: "btrfs", Source: "/dev/loop33"}, false, true},
		"a btrfs of a disk":         {mount.MountPoint{Minor: 45, Root: "/", FSType: "btrfs", Source: "/dev/sda"}, false, false},
	} {
		assert.Equal(t, c.its, device.IsMountedAs(c.there), name)
		assert.Equal(t, c.any, loop.IsMountOfAny(c.there), name)
	}
}

// TestLabelsDoNotMeet whatever their length is and where the kernel's limit cuts them.
func TestLabelsDoNotMeet(t *testing.T) {
	long := "volumekit.io/loop-block/pvc-11111111-2222-3333-4444-55555555555a"
	require.Len(t, long, 64, "as the volumes are that are provisioned")
	seen := map[string]string{}
	for _, label := range []string{long, long[:63] + "b", long + "c", long[:63], long[:62], loop.KeptLabel(long), loop.KeptLabel(long)[:62]} {
		kept := loop.KeptLabel(label)
		require.LessOrEqual(t, len(kept), 63)
		assert.Empty(t, seen[kept], "%q and %q are both %q", label, seen[kept], kept)
		seen[kept] = label
		assert.True(t, loop.Device{Label: kept}.IsLabelled(label))
	}
	assert.Equal(t, long[:62], loop.KeptLabel(long[:62]), "a short one stays what it is")

	older := loop.Device{Label: long[:63]}
	assert.False(t, older.IsLabelled(long))
	assert.True(t, older.MayBeLabelled(long))
	assert.False(t, loop.Device{Label: long[:62]}.MayBeLabelled(long))
}

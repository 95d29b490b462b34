package loop_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

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
	long := "volumekit.io/a-name-that-is-longer-than-what-the-kernel-keeps-of-it"
	assert.True(t, loop.Device{Label: long[:63]}.IsLabelled(long))
	assert.False(t, loop.Device{Label: long[:62]}.IsLabelled(long))
}

package loop

import (
	"fmt"
	"strings"

	"github.com/volumekit/volumekit/mount"
)

// loopMajor is the number of the kernel's driver of loop devices.
const loopMajor = 7

// IsMountedAs reports whether a mount shows the whole filesystem on the device. A btrfs has a number of its own in the mount
// table, so that it is known by the path of the device.
func (d Device) IsMountedAs(m mount.MountPoint) bool {
	if m.Root != "/" {
		return false
	}
	if m.FSType == "btrfs" {
		return m.Source == d.Path
	}
	return m.Major == d.Major && m.Minor == d.Minor
}

// IsMountOfAny reports whether a mount shows the whole filesystem on some loop device.
func IsMountOfAny(m mount.MountPoint) bool {
	if m.FSType == "btrfs" {
		return m.Root == "/" && strings.HasPrefix(m.Source, "/dev/loop")
	}
	return m.Root == "/" && m.Major == loopMajor
}

// FileMountedAt returns the path of the file behind the loop device whose filesystem is mounted at mountPath, as the kernel shows it. It
// does not wait for the filesystem. Where none of a loop device is mounted, and for a btrfs, whose device the kernel does not
// tell so, the error matches [ErrNotAttached].
func FileMountedAt(mountPath string) (string, error) {
	file, err := fileMountedAt(mountPath)
	if err != nil {
		return "", fmt.Errorf("the loop device at %q: %w", mountPath, err)
	}
	return file, nil
}

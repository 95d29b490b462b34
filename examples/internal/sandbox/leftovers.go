package sandbox

import (
	"fmt"
	"strings"
)

// Leftovers lists the mounts, devices and files that a run has left. A successful run leaves none.
type Leftovers struct {
	// Mounts are the mount points under the root directory.
	Mounts []string `json:"mounts"`
	// LoopDevices are the loop devices whose file is, or was, under the root directory.
	LoopDevices []string `json:"loopDevices"`
	// Files are the files under the root directory; empty directories are not counted, they are removed.
	Files []string `json:"files"`
}

// Empty reports whether nothing is left.
func (l Leftovers) Empty() bool { return l.isUnmounted() && len(l.Files) == 0 }

// OnlyFiles reports whether only files are left.
func (l Leftovers) OnlyFiles() bool { return l.isUnmounted() && len(l.Files) > 0 }

func (l Leftovers) isUnmounted() bool { return len(l.Mounts) == 0 && len(l.LoopDevices) == 0 }

// String lists all leftovers.
func (l Leftovers) String() string {
	var b strings.Builder
	for _, kind := range []struct {
		name  string
		paths []string
	}{{"mount", l.Mounts}, {"loop device", l.LoopDevices}, {"file", l.Files}} {
		for _, path := range kind.paths {
			fmt.Fprintf(&b, "\n  %s %s", kind.name, path)
		}
	}
	return b.String()
}

// LeftoverError says that a run has left something.
type LeftoverError struct {
	// Left lists it; Root is the directory.
	Left Leftovers
	Root string
}

// Error lists all leftovers.
func (e *LeftoverError) Error() string { return "this is left under " + e.Root + ":" + e.Left.String() }

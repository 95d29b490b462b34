package main

import (
	"fmt"
	"strings"
)

// leftovers is what a run left behind. A good run leaves nothing.
type leftovers struct {
	// Mounts are the mount points under the root directory.
	Mounts []string `json:"mounts"`
	// LoopDevices are the loop devices whose file is, or was, under the root directory.
	LoopDevices []string `json:"loopDevices"`
	// Files are the files under the root directory; empty directories are not counted, they are removed.
	Files []string `json:"files"`
}

func (l leftovers) empty() bool { return l.isUnmounted() && len(l.Files) == 0 }

// onlyFiles reports whether files are left, and nothing but files.
func (l leftovers) onlyFiles() bool { return l.isUnmounted() && len(l.Files) > 0 }

func (l leftovers) isUnmounted() bool { return len(l.Mounts) == 0 && len(l.LoopDevices) == 0 }

// String lists everything that is left.
func (l leftovers) String() string {
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

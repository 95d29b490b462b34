package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// This file deals with files of somebody else's in the directories on which volumes are mounted. They are never deleted: who
// uses the volume is told while they are hidden below it, and what they keep from going is told when it is gone.

// lookBelow notes what lies in the directory on which a volume is about to be staged, so that it can be told once it is hidden.
// A look at what is mounted there already could hang, and says nothing.
func (g guard) lookBelow(ctx context.Context, path string, intent operationexecutor.Intent) {
	if intent.Kind != operationexecutor.OpMount || partOf(intent) != partStaging {
		return
	}
	if _, err := g.kernel.Lookup(ctx, path); !errors.Is(err, mount.ErrNotMounted) {
		return
	}
	var below error
	if !isEmptyOrMissing(path) {
		below = fmt.Errorf("files lie in %q, below the volume that is staged there: they stay, and so will the directory: move them away when it is unstaged", path)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if delete(g.strays, path); below != nil {
		g.strays[path] = below
	}
}

// tellBelow tells of what a staging hides.
func (g guard) tellBelow(path string, intent operationexecutor.Intent) {
	if intent.Kind != operationexecutor.OpMount || partOf(intent) != partStaging {
		return
	}
	g.mu.Lock()
	below := g.strays[path]
	g.mu.Unlock()
	if below == nil || g.mounts.get(path) == nil {
		return // A volume that is staged without a mount has its own files there.
	}
	g.health.Report(holderOf(intent), health.Below, []health.Condition{health.Degraded(health.StrayFiles, below)})
}

func isEmptyOrMissing(path string) bool {
	dir, err := os.Open(path)
	if err != nil {
		return true // or it cannot be said
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// tellKept lists a directory that is there after its volume was taken away, and takes one that is gone from the list.
func (g guard) tellKept(path string, intent operationexecutor.Intent) {
	if !isTeardown(intent) {
		return
	}
	o := Orphan{Path: path, PodUID: intent.PodUID, later: true}
	gone := g.mounts.isRemoved(path)
	if !gone {
		_, err := os.Lstat(path)
		gone = err != nil || g.checkPlace(o) != nil
	}
	o.Err = fmt.Errorf("directory %q stays, since something else is in it: move that away, and remove it: %w", path, volume.ErrDirectoryKept)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.strays, path)
	isIt := func(o Orphan) bool { return o.Path == path }
	if gone && !slices.ContainsFunc(g.orphans, isIt) {
		return
	}
	g.orphans = slices.DeleteFunc(slices.Clone(g.orphans), isIt) // Others read the list that was reported.
	if !gone {
		g.orphans = append(g.orphans, o)
		slices.SortFunc(g.orphans, byPath)
	}
}

package mountwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// This file handles foreign files in the directories on which volumes are mounted. They are never deleted. While a volume
// hides them, its conditions show them. After its teardown they keep the directory in place, and the directory is reported.

// lookBelow notes the files in the directory on which a volume is about to be staged. They are reported when the mount hides
// them. If something is mounted there already, lookBelow does nothing: reading that mount could hang, and would not show
// what is below it.
func (g guard) lookBelow(ctx context.Context, path string, intent operationexecutor.Intent) {
	if intent.Kind != operationexecutor.OpMount || !isStaging(intent) {
		return
	}
	if _, err := g.kernel.Lookup(ctx, path); !errors.Is(err, mount.ErrNotMounted) {
		return
	}
	var below error
	if !isEmptyOrMissing(path) {
		below = fmt.Errorf("files lie in %q, below the volume that is staged there: they stay, and so will the directory: move them away when it is unstaged", path)
	}
	g.below.Lock()
	defer g.below.Unlock()
	if delete(g.strays, path); below != nil {
		g.strays[path] = below
	}
}

// tellBelow tells of what a staging hides.
func (g guard) tellBelow(path string, intent operationexecutor.Intent) {
	if intent.Kind != operationexecutor.OpMount || !isStaging(intent) {
		return
	}
	g.below.Lock()
	below := g.strays[path]
	g.below.Unlock()
	if below == nil || g.mounts.get(path) == nil {
		return // A volume that is staged without a mount has its own files there.
	}
	g.options.Health.Report(holderOf(intent), health.Below, []health.Condition{health.Degraded(health.StrayFiles, below)})
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

// tellKept has a directory listed that is there after its volume was taken away, and one that is gone taken from the list.
func (g guard) tellKept(path string, intent operationexecutor.Intent) {
	if !isTeardown(intent) {
		return
	}
	g.below.Lock()
	delete(g.strays, path)
	g.below.Unlock()
	g.options.Orphans.Kept(path, intent.PodUID, g.mounts.isRemoved(path))
}

// isStaging reports whether an intent to mount is about the staging: an operation that stages and sets up records each on its own.
func isStaging(intent operationexecutor.Intent) bool {
	return intent.PodUID == "" || intent.MountPath == ""
}

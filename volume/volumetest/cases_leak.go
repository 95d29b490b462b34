package volumetest

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
)

func leakCases() []Case {
	return []Case{{
		Rule: "L1", Group: "leak", Name: "nothing is left",
		Sentence: "After TearDown, UnmountDevice and Detach nothing MUST be left: no mount, nothing in the pod's directory of volumes or at the path of staging, no goroutine, no open file, no loop device.",
		run:      nothingLeft,
	}}
}

func nothingLeft(e *env) {
	before := openFiles(e.root)
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	_, _ = p.mounter.GetMetrics(e.ctx())
	p.tearDown()
	s.release()
	p.expectGone()
	if s.stagePath != "" && e.exists(s.stagePath) {
		e.broken("%s is left", s.stagePath)
	}
	for _, name := range e.namesIn(filepath.Dir(e.host.GetPodVolumeDir(p.pod.UID, e.plugin.GetPluginName(), p.spec.Name()))) {
		e.broken("%q is left in the pod's directory of volumes", name)
	}
	if mounts := e.mountsBeneathRoot(); len(mounts) > 0 {
		e.broken("%d mounts are left, the first at %s", len(mounts), mounts[0].Path)
	}
	ctx, cancel := context.WithTimeout(e.ctx(), cmp.Or(e.config.patience, leakPatience))
	defer cancel()
	if left := goroutinesLeft(ctx, e.id); left != "" {
		e.broken("goroutines are left that the plugin started:\n%s", left)
	}
	if left := openFilesLeft(ctx, e.root, before); left != "" {
		e.broken("open files are left: %s", left)
	}
	if left := loopDevicesLeft(ctx, e.root); left != "" {
		e.broken("loop devices are left: %s", left)
	}
}

// lister is a World that tells what is in a directory.
type lister interface {
	// ReadDir lists a directory; errors are those of os.ReadDir.
	ReadDir(name string) ([]fs.DirEntry, error)
}

// namesIn returns the names in a directory, none where it is not there or the world cannot tell.
func (e *env) namesIn(dir string) []string {
	e.t.Helper()
	world, ok := e.world.(lister)
	if !ok {
		return nil
	}
	entries, err := world.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.t.Fatalf("reading %s: %v", dir, err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

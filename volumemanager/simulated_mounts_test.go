package volumemanager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/mount"
	sim "github.com/volumekit/volumekit/volumemanager/internal/world"
)

// simulatedTable is the mount table of a simulated node: it shows the mounts of set-ups.
type simulatedTable struct {
	*sim.Process

	// stale says that it also shows those that are gone.
	stale bool
}

var _ MountTable = simulatedTable{}

// hasReusable reports whether the table is needed, without which nothing is used as a restart finds it.
func hasReusable(p *sim.Process) bool {
	return slices.ContainsFunc(p.Volumes(), func(name string) bool { return p.Volume(name).Reusable })
}

// List implements MountTable.
func (t simulatedTable) List(context.Context) ([]mount.MountPoint, error) {
	var table []mount.MountPoint
	for _, m := range t.Mounts() {
		table = append(table, mount.MountPoint{UniqueID: m.ID, Path: m.Path})
	}
	return table, nil
}

// Lookup implements MountTable.
func (t simulatedTable) Lookup(ctx context.Context, path string) (mount.MountPoint, error) {
	last, made := t.LastMount(path)
	there, err := t.IsMountPoint(ctx, path)
	if made && (t.stale || there && err == nil) {
		return mount.MountPoint{UniqueID: last.ID, Path: path}, nil
	}
	return mount.MountPoint{}, fmt.Errorf("%s: %w", path, mount.ErrNotMounted)
}

// TestTheSimulationReusesWhatARestartFinds: there is no second set-up after the crash, unless its mount is gone.
func TestTheSimulationReusesWhatARestartFinds(t *testing.T) {
	var c sim.Config
	ofReuse(&c)
	c.Eager, c.Faults = true, sim.Faults{}
	for name, test := range map[string]struct {
		then string
		want int
	}{
		"it is there": {"crash n1\nsleep 1s", 1},
		"it is gone":  {"reboot n1\nsleep 1s\nrelease Record:n1:v1:p1 ok\nrelease SetUp:n1:v1:p1 ok", 2},
	} {
		t.Run(name, func(t *testing.T) {
			steps, err := simulation.ParseSteps("add p1\nrelease Record:n1:v1:p1 ok\nrelease SetUp:n1:v1:p1 ok\nrelease Record:n1:v1:p1 ok\n" + test.then)
			require.NoError(t, err)
			s := simulatedScenario(c, simulatedOrchestrator{}, simulatedBug{})
			s.Keep = true
			r := s.Replay(t, steps)
			require.NoError(t, r.Err)
			assert.Equal(t, steps, r.Steps, "no step may be skipped")
			assert.Equal(t, test.want, strings.Count(strings.Join(r.Lines, "\n"), "call SetUp"), "%s", strings.Join(r.Lines, "\n"))
		})
	}
}

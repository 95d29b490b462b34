package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// samples is how many points are tried of each kind of power cut, to keep within CI's time.
const samples = 10

// powerCuts is the test of one kind of power cut.
type powerCuts struct {
	crashes
	outage outage
	disk   []extent
}

// The power is cut before every system call that changes the world. What was not synced is lost, or half of it, and with it
// all mounts, loop devices and records of mounts. Whoever starts the agent again finds everything usable, or can have it taken
// away, and nothing else was touched; what was synced is there.
func TestPowerCutAtEveryStep(t *testing.T) {
	programs := build(t)
	for i, o := range outages() {
		t.Run(o.name, func(t *testing.T) {
			p := &powerCuts{crashes: crashes{programs: programs, dir: memory(t), calls: map[string]int{}}, outage: o}
			p.disk = o.format(t, filepath.Join(p.dir, "new"))
			p.whole = p.liveWhole(t)
			points := p.points(i)
			work := make(chan func(context.Context) error)
			go func() {
				defer close(work)
				for _, point := range points {
					work <- func(ctx context.Context) error { return p.cutAt(ctx, point.call, point.goal) }
				}
			}()
			inParallel(t, work)
			t.Logf("the power was cut %d times, before each of %d of %d calls: %v", p.tried, len(points), p.whole.made, p.calls)
			assert.Greater(t, p.tried, len(points)*9/10, "points at which the power was really cut")
		})
	}
}

// memory returns a directory in memory for the disks of machines.
func memory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unix.Mount("disks", dir, "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// point is one power cut.
type point struct {
	call int
	goal goal
}

// points returns all points, or those of a sample: other ones for each kind. The goals take turns; at each point each
// filesystem has both, with one of its two kinds each.
func (p *powerCuts) points(kind int) []point {
	last := p.whole.made + 1
	var points []point
	if os.Getenv(envAll) != "" {
		for n := 1; n <= last; n++ {
			points = append(points, point{n, goals()[(n+kind)%2]})
		}
		return points
	}
	every := last / samples
	for n := 1 + kind*every/len(outages()); n <= last; n += every {
		points = append(points, point{n, goals()[len(points)%2]})
	}
	return points
}

// liveWhole learns what a life without a power cut is like.
func (p *powerCuts) liveWhole(t *testing.T) *life {
	t.Helper()
	m, err := p.newMachine(t.Context(), "whole")
	require.NoError(t, err)
	l := &life{node: m.node, calls: faultrun.Changing}
	require.NoError(t, l.live(t.Context()))
	require.NoError(t, m.checkKept())
	require.NoError(t, m.close(t.Context()))
	return l
}

func (p *powerCuts) newMachine(ctx context.Context, name string) (*machine, error) {
	dir := filepath.Join(p.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return newMachine(ctx, p.programs, dir, p.outage, p.disk)
}

// cutAt cuts the power before call n, and sees what becomes of it.
func (p *powerCuts) cutAt(ctx context.Context, n int, g goal) error {
	m, err := p.newMachine(ctx, fmt.Sprintf("%d-%d", n, g))
	if err != nil {
		return err
	}
	point := "none"
	l := &life{node: m.node, calls: faultrun.Changing, judge: func(call faultrun.Call) faultrun.Verdict {
		if call.N != n {
			return faultrun.Verdict{}
		}
		point = call.String()
		return faultrun.Kill()
	}}
	err = l.live(ctx)
	if err == nil && l.killed {
		p.count(point)
		err = p.cutAndRecover(ctx, m, l, g)
	}
	if err != nil {
		err = fmt.Errorf("the power was cut before call %d, %s, and then %s: %w", n, point, g, err)
	}
	return errors.Join(err, m.close(ctx))
}

func (p *powerCuts) cutAndRecover(ctx context.Context, m *machine, l *life, g goal) error {
	kept, err := m.scratchIsKept()
	if err != nil {
		return err
	}
	if err := m.cut(ctx); err != nil {
		return err
	}
	if kept && want(g) == podWanted {
		err = p.checkScratch(ctx, l)
	}
	return errors.Join(err, p.recover(ctx, l, g), m.checkKept())
}

// checkScratch starts an agent with the pod still wanted, and finds what the pod has synced into its own directory.
func (p *powerCuts) checkScratch(ctx context.Context, before *life) error {
	after := &life{node: before.node, uuid: before.uuid}
	if err := errors.Join(after.node.want(podWanted), after.start(ctx), after.settle(ctx)); err != nil {
		return err
	}
	return errors.Join(after.node.checkUse(isScratch), after.terminate(ctx))
}

// isScratch reports whether something was written to the directory of a pod, which goes with it, and not with a boot.
func isScratch(path string) bool { return strings.Contains(path, "/scratch/") }

// scratchIsKept reports whether the pod was wanted without a break since it has written into its directory.
func (m *machine) scratchIsKept() (kept bool, err error) {
	err = m.namespace.Do(func() error {
		for path := range m.canaries() {
			if !isScratch(path) {
				continue
			}
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
		}
		pod, err := os.ReadFile(m.path("wanted/pod.json"))
		kept = len(pod) > 0
		return err
	})
	return kept, err
}

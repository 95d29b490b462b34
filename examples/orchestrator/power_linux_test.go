package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// powerCuts is the test of one kind of power cut.
type powerCuts struct {
	*crashes
	kind   int
	outage outage
	disk   []extent
}

// The power is cut before every system call that changes the world; in the ordinary run before every fortieth or so, another
// one for each kind of power cut. What was not synced is lost, or half of it, and with it all mounts, loop devices and records
// of mounts. The next agent finds everything usable, or can remove it, and nothing else was touched;
// what was synced is there.
func TestPowerCutAtEveryStep(t *testing.T) {
	programs := build(t)
	for kind, o := range outages() {
		t.Run(o.name, func(t *testing.T) {
			machines := &machines{programs: programs, dir: memory(t)}
			p := &powerCuts{
				crashes: newCrashes(machines),
				kind:    kind, outage: o, disk: o.format(t, filepath.Join(machines.dir, "new")),
			}
			made, ofSteps := 0, []int(nil)
			p.whole = &life{calls: faultrun.Changing}
			require.NoError(t, p.live(t.Context(), p.whole, func(ctx context.Context, m *machine, l *life, step int) error {
				l.aim.take(0, faultrun.Verdict{})
				err := steps()[step].do(l, ctx)
				_, calls := l.aim.rest()
				made += calls
				ofSteps = append(ofSteps, calls)
				return err
			}))
			p.tasks = newTasks(1, o.every, ofSteps)
			p.liveAll(t, p.tasks, func(ctx context.Context) error { return p.live(ctx, &life{calls: faultrun.Changing}, p.cut) })
			p.report(t, "the power was cut", made)
			if !p.tasks.all {
				made /= 2 * o.every // Of a short step there may be none.
			}
			assert.Greater(t, p.tried, made*9/10, "points at which the power was really cut")
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

// live lives a life on a machine of its own.
func (p *powerCuts) live(ctx context.Context, l *life, take func(context.Context, *machine, *life, int) error) error {
	name := fmt.Sprintf("machine-%d", p.machines.count.Add(1))
	dir := filepath.Join(p.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	m, err := newMachine(ctx, p.programs, dir, p.outage, p.disk)
	if err != nil {
		return err
	}
	l.node, l.seen = m.node, make(map[want]state)
	if l != p.whole {
		l.whole = p.whole
	}
	err = l.live(ctx, func(ctx context.Context, l *life, step int) error { return take(ctx, m, l, step) })
	if err == nil {
		err = m.checkKept()
	} else if l.agent != nil {
		l.agent.stop()
		<-l.agent.ended
	}
	if err = errors.Join(err, m.close(ctx)); err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// cut goes through a step of a life, cuts the power meanwhile, and sees what becomes of it.
func (p *powerCuts) cut(ctx context.Context, m *machine, l *life, i int) error {
	next, ok := p.tasks.next(i)
	if !ok {
		return nil
	}
	if err := l.reach(ctx, steps()[i]); err != nil {
		return err
	}
	if !p.tasks.all {
		next.call += p.kind * p.outage.every / len(outages()) // other ones than those of the other kinds
	}
	l.aim.take(next.call, faultrun.Kill())
	err := steps()[i].do(l, ctx)
	point, made := l.aim.rest()
	if point == "" {
		p.tasks.missed(i, next, made)
		return err
	}
	p.crashes.count(point)
	goal := goals()[(next.call+p.kind)%2]
	if err := p.recover(ctx, m, l, next, recovery{i, goal}); err != nil {
		return fmt.Errorf("the power was cut before call %d, %s, and then %s: %w", next.call, point, goal, err)
	}
	return nil
}

// recover gives the power back and, perhaps, cuts it once more while the agent recovers.
func (p *powerCuts) recover(ctx context.Context, m *machine, l *life, next task, r recovery) error {
	way := next.call % (1 + seconds)
	if !p.tasks.all && next.call%4 != 0 {
		way = 0
	}
	at := second(next, way, p.callsOf(r))
	l.aim.take(at, faultrun.Kill())
	err := m.cutAndRecover(ctx, l, r.goal)
	point, made := l.aim.rest()
	if point == "" {
		p.recovered(r, made)
		return err
	}
	p.killedAgain()
	if err := m.cutAndRecover(ctx, l, r.goal); err != nil {
		return fmt.Errorf("the power was cut once more, before call %d of the recovery, %s: %w", at, point, err)
	}
	return nil
}

// cutAndRecover cuts the power and starts another agent. What the pod has kept in memory is lost, and not what it has synced to
// a directory of its own, as long as it is wanted.
func (m *machine) cutAndRecover(ctx context.Context, l *life, goal want) error {
	if l.agent != nil { // It was killed after it had settled, while it noted what it had done.
		if _, err := l.over(ctx); err != nil {
			return err
		}
	}
	kept := uint64(0)
	if l.podUsed && goal == podWanted {
		var err error
		if kept, err = m.scratch(); err != nil {
			return err
		}
	}
	l.podUsed = false
	if err := m.cut(ctx); err != nil {
		return err
	}
	if err := l.recover(ctx, goal); err != nil || kept == 0 {
		return err
	}
	now, err := m.scratch()
	if err == nil && now != kept {
		err = errors.New("the pod has lost what it had synced to its own directory")
	}
	return err
}

// scratch returns the number of the file that the pod has written to its own directory.
func (m *machine) scratch() (inode uint64, err error) {
	err = m.namespace.Do(func() error {
		for path := range m.canaries() {
			if !strings.Contains(path, "/scratch/") {
				continue
			}
			var file unix.Stat_t
			if err := unix.Stat(path, &file); err != nil {
				return err
			}
			inode = file.Ino
		}
		return nil
	})
	return inode, err
}

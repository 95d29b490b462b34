package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// envAll asks for every case of the tests that interfere with the agent, which takes minutes. Without it each point is
// tried with one of the goals, or errors, in turn.
const envAll = "ORCHESTRATOR_ALL"

// goal is what the manifests say after a crash.
type goal want

func (g goal) String() string {
	if want(g) == podWanted {
		return "the pod is wanted"
	}
	return "nothing is wanted"
}

func goals() []goal { return []goal{goal(podWanted), goal(nothingWanted)} }

// crashes is the test of all points at which an agent can be killed.
type crashes struct {
	programs programs
	dir      string
	whole    *life // without a crash

	mu    sync.Mutex
	tried int
	calls map[string]int // how often which call was the point
}

// The agent is killed before every system call that changes the world. Whoever starts it again finds everything usable,
// or can have it taken away, and nothing else was touched.
func TestKilledAtEveryStep(t *testing.T) {
	c := &crashes{programs: build(t), dir: t.TempDir(), calls: map[string]int{}}
	c.whole = c.liveWhole(t)
	last := c.whole.made + 1
	work := make(chan func(context.Context) error)
	go func() {
		defer close(work)
		for n := 1; n <= last; n++ {
			for i, g := range goals() {
				if os.Getenv(envAll) != "" || n%2 == i {
					work <- func(ctx context.Context) error { return c.crash(ctx, n, g) }
				}
			}
		}
	}()
	inParallel(t, work)
	t.Logf("killed %d times, before each of %d calls: %v", c.tried, c.whole.made, c.calls)
	assert.Greater(t, c.tried, c.whole.made*9/10, "points at which the agent was really killed")
}

// inParallel does work on all processors.
func inParallel(t *testing.T, work <-chan func(context.Context) error) {
	t.Helper()
	ctx := t.Context()
	var workers sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for do := range work {
				if err := do(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}

// liveWhole learns what a life without a crash is like.
func (c *crashes) liveWhole(t *testing.T) *life {
	t.Helper()
	node, err := c.newNode("whole")
	require.NoError(t, err)
	l := &life{node: node, calls: faultrun.Changing}
	require.NoError(t, l.live(t.Context()))
	require.NoError(t, node.close())
	require.NotZero(t, l.made)
	loops := 0
	for _, one := range l.ready {
		t.Log(one)
		if one[:4] == "loop" {
			loops++
		}
	}
	require.Equal(t, 2, loops)
	return l
}

func (c *crashes) newNode(name string) (*node, error) {
	dir := filepath.Join(c.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return newNode(c.programs, dir)
}

// crash kills the agent before call n, and sees what becomes of it.
func (c *crashes) crash(ctx context.Context, n int, g goal) error {
	node, err := c.newNode(fmt.Sprintf("%d-%d", n, g))
	if err != nil {
		return err
	}
	point := "none"
	l := &life{node: node, calls: faultrun.Changing, judge: func(call faultrun.Call) faultrun.Verdict {
		if call.N != n {
			return faultrun.Verdict{}
		}
		point = call.String()
		return faultrun.Kill()
	}}
	err = l.live(ctx)
	if err == nil && l.killed {
		c.count(point)
		err = c.recover(ctx, l, g)
	}
	if err != nil {
		err = fmt.Errorf("killed before call %d, %s, and then %s: %w", n, point, g, err)
	}
	return errors.Join(err, node.close())
}

func (c *crashes) count(point string) {
	name := point
	for i, r := range point {
		if r == '(' {
			name = point[:i]
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried++
	c.calls[name]++
}

// recover starts the agent again, and sees that what is wanted is there, that nothing else is, and that everything can
// be taken away.
func (c *crashes) recover(ctx context.Context, before *life, g goal) error {
	after := &life{node: before.node, uuid: before.uuid}
	if before.deleted {
		after.node.renew()
	}
	if err := after.node.want(want(g)); err != nil {
		return err
	}
	if err := errors.Join(after.start(ctx)); err != nil {
		return err
	}
	if err := after.settle(ctx); err != nil {
		return err
	}
	if want(g) == podWanted {
		if err := c.checkReady(before, after); err != nil {
			return err
		}
		if err := after.change(ctx, nothingWanted); err != nil {
			return err
		}
	}
	if err := after.end(ctx); err != nil {
		return err
	}
	if more := after.gone.beyond(c.whole.gone); len(more) > 0 {
		return fmt.Errorf("left on the node: %q; the agent has told:\n%s", more, after.told)
	}
	return nil
}

// checkReady finds out whether the pod has its volumes, and they what was written into them before the crash.
func (c *crashes) checkReady(before, after *life) error {
	errs := []error{after.sameAs(c.whole.ready)}
	if before.used && !before.deleted {
		errs = append(errs, after.node.checkUse(isLasting), after.sameFilesystem())
	}
	return errors.Join(append(errs, after.node.use(), after.node.checkUse(everything))...)
}

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// goals are what the manifests say after a crash.
func goals() []want { return []want{podWanted, nothingWanted} }

// crashes is the test of all points at which an agent can be killed.
type crashes struct {
	*machines
	tasks *tasks

	mu       sync.Mutex
	tried    int
	again    int              // how often an agent was killed that recovered
	calls    map[string]int   // how often which call was the point
	recovers map[recovery]int // how many calls a recovery has
}

// recovery is what an agent does that is started after one was killed in a step.
type recovery struct {
	step int
	goal want
}

func newCrashes(m *machines) *crashes {
	return &crashes{machines: m, calls: make(map[string]int), recovers: make(map[recovery]int)}
}

// The agent is killed before every system call that changes the world, and of those that are started then, some are killed
// too. The next agent finds everything usable, or can remove it, and nothing else was touched. In the ordinary run it is
// killed before each fourth of the calls of mkfs.ext4 and of other programs that it starts.
func TestKilledAtEveryStep(t *testing.T) { killEvery(t, ext4()) }

// The same with a volume whose filesystem repairs itself, and grows only while it is mounted. It takes long: mkfs.xfs alone
// writes the whole log.
func TestKilledAtEveryStepOnXFS(t *testing.T) {
	if os.Getenv(envAll) == "" {
		t.Logf("%s is not set", envAll)
		return
	}
	killEvery(t, xfs())
}

func killEvery(t *testing.T, f filesystem) {
	t.Helper()
	c := newCrashes(newMachines(t, f))
	if os.Getenv(envAll) == "" {
		// They are a third of all calls, most of them writes of mkfs.ext4 and resize2fs. Another run has other ones.
		c.sample = sample{every: 4, from: rand.IntN(4)}
	}
	calls, made := c.liveWhole(t, faultrun.Changing)
	c.tasks = newTasks(len(goals())*(1+seconds), 1, calls)
	c.liveAll(t, c.tasks, c.live)
	c.report(t, "killed", made)
	assert.Greater(t, c.tried, made*9/10, "points at which the agent was really killed")
}

// report prints what was done.
func (c *crashes) report(t *testing.T, done string, made int) {
	t.Helper()
	t.Logf("%s %d times, in lives of %d calls (of tools: %+v), and %d times once more while it was recovering: %v", done, c.tried, made, c.sample, c.again, c.calls)
	for _, one := range c.tasks.absent {
		t.Logf("not %s before %s: it did not come any more", done, one)
	}
}

// live lives a life in which the agent is killed once in each step.
func (c *crashes) live(ctx context.Context) error {
	return c.machines.live(ctx, &life{calls: faultrun.Changing}, c.crash)
}

// crash goes through a step of a life, kills the agent meanwhile, and sees what becomes of it.
func (c *crashes) crash(ctx context.Context, l *life, i int) error {
	next, ok := c.tasks.next(i)
	if !ok {
		return nil
	}
	if err := l.reach(ctx, steps()[i]); err != nil {
		return err
	}
	l.aim.take(next.call, faultrun.Kill())
	err := steps()[i].do(l, ctx)
	point, made := l.aim.rest()
	if point == "" {
		c.tasks.missed(i, next, made)
		return err
	}
	c.count(point)
	goal := goals()[next.variant%len(goals())]
	if err := c.recover(ctx, l, next, recovery{i, goal}); err != nil {
		return fmt.Errorf("killed before call %d, %s, and then %s: %w", next.call, point, goal, err)
	}
	return nil
}

// seconds is how many ways there are to kill an agent that recovers, beside none.
const seconds = 4

// way returns in which way an agent is killed that recovers. In the ordinary run most are not.
func (c *crashes) way(next task) int {
	const every = 8
	switch {
	case c.tasks.all:
		return next.variant / len(goals())
	case next.call%every == every-1:
		return 1 + next.call/every%seconds
	}
	return 0
}

// second returns before which of its calls an agent is killed that recovers; 0: before none.
func second(next task, way, calls int) int {
	if way == 0 {
		return 0
	}
	calls = max(calls, seconds) // It is not known before the first.
	// Neighbours are killed before other calls.
	part := calls/seconds + 1
	return 1 + (way-1)*part + next.call%part
}

// recover starts another agent and, perhaps, kills that too and starts a third.
func (c *crashes) recover(ctx context.Context, l *life, next task, r recovery) error {
	at := second(next, c.way(next), c.callsOf(r))
	l.aim.take(at, faultrun.Kill())
	err := l.recover(ctx, r.goal)
	point, made := l.aim.rest()
	if point == "" {
		c.recovered(r, made)
		return err
	}
	c.killedAgain()
	if err := l.recover(ctx, r.goal); err != nil {
		return fmt.Errorf("killed once more, before call %d of the recovery, %s: %w", at, point, err)
	}
	return nil
}

func (c *crashes) callsOf(r recovery) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recovers[r]
}

// recovered notes how many calls a recovery has.
func (c *crashes) recovered(r recovery, calls int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recovers[r] = calls
}

func (c *crashes) killedAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.again++
}

func (c *crashes) count(point string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried++
	c.calls[nameOfCall(point)]++
}

func nameOfCall(point string) string {
	name, _, _ := strings.Cut(point, "(")
	return name[strings.LastIndexByte(name, ' ')+1:]
}

package main

import (
	"context"
	"fmt"
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

	mu    sync.Mutex
	tried int
	calls map[string]int // how often which call was the point
}

// The agent is killed before every system call that changes the world. Whoever starts it again finds everything usable,
// or can have it taken away, and nothing else was touched.
func TestKilledAtEveryStep(t *testing.T) {
	c := &crashes{machines: newMachines(t), calls: map[string]int{}}
	calls, made := c.liveWhole(t, faultrun.Changing)
	c.tasks = newTasks(len(goals()), 1, calls)
	c.liveAll(t, c.tasks, c.live)
	t.Logf("killed %d times, before each of %d calls: %v", c.tried, made, c.calls)
	assert.Greater(t, c.tried, made*9/10, "points at which the agent was really killed")
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
	if err := l.reach(ctx, steps()[i].from); err != nil {
		return err
	}
	l.aim.take(next.call, faultrun.Kill())
	err := steps()[i].do(l, ctx)
	point, _ := l.aim.rest()
	if point == "" {
		c.tasks.missed(i, next)
		return err
	}
	c.count(point)
	goal := goals()[next.variant]
	if err := l.recover(ctx, goal); err != nil {
		return fmt.Errorf("killed before call %d, %s, and then %s: %w", next.call, point, goal, err)
	}
	return nil
}

func (c *crashes) count(point string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried++
	c.calls[nameOfCall(point)]++
}

func nameOfCall(point string) string {
	name, _, _ := strings.Cut(point, "(")
	return name
}

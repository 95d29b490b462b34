package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// machines are where lives are lived, each on one of its own.
type machines struct {
	programs   programs
	dir        string
	filesystem filesystem // of the volume of their pods
	sample     sample
	count      atomic.Int64
	whole      *life // nothing goes wrong in it
}

func newMachines(t *testing.T, f filesystem) *machines {
	t.Helper()
	return &machines{programs: build(t), dir: t.TempDir(), filesystem: f}
}

// take goes through a step of a life in some way.
type take func(ctx context.Context, l *life, step int) error

// live lives a life, and compares it with the whole one.
func (m *machines) live(ctx context.Context, l *life, take take) error {
	name := fmt.Sprintf("machine-%d", m.count.Add(1))
	dir := filepath.Join(m.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	node, err := newNode(m.programs, dir, m.filesystem)
	if err != nil {
		return err
	}
	l.node, l.whole, l.seen = node, m.whole, make(map[want]state)
	l.aim.ignores, l.aim.sample = node.asksOthers, m.sample
	err = l.live(ctx, take)
	if l.agent != nil {
		l.agent.kill()
	}
	err = errors.Join(err, node.close())
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// liveWhole learns what a life is like in which nothing goes wrong, and returns how many calls each step has, and all.
func (m *machines) liveWhole(t *testing.T, calls faultrun.Calls) (ofSteps []int, total int) {
	t.Helper()
	whole := &life{calls: calls}
	require.NoError(t, m.live(t.Context(), whole, func(ctx context.Context, l *life, step int) error {
		l.aim.take(0, faultrun.Verdict{})
		err := steps()[step].do(l, ctx)
		_, made := l.aim.rest()
		t.Logf("%s: %d calls", steps()[step].name, made)
		ofSteps = append(ofSteps, made)
		total += made
		return err
	}))
	m.whole = whole
	loops := 0
	for _, one := range whole.seen[podWanted] {
		t.Log(one)
		if strings.HasPrefix(one, "loop") {
			loops++
		}
	}
	require.Equal(t, 2, loops)
	return ofSteps, total
}

// liveAll lives until no task is left.
func (m *machines) liveAll(t *testing.T, tasks *tasks, live func(context.Context) error) {
	t.Helper()
	var workers sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for tasks.left() && t.Context().Err() == nil {
				if err := live(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}

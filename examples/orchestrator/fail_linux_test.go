package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// every so many calls one fails, to keep within CI's time.
const every = 4

// faults are the errors that calls are made to return.
func faults() []unix.Errno {
	return []unix.Errno{unix.EIO, unix.ENOSPC, unix.EBUSY, unix.EINTR, unix.EMFILE, unix.ENOMEM, unix.EPERM}
}

// failures is the test of all calls that can fail.
type failures struct {
	*machines
	tasks *tasks

	mu     sync.Mutex
	tried  int
	told   int // how often the agent has told of the error
	begun  int // how often it gave up, and was started again
	silent map[string]int
}

// Each system call is made to fail once. The agent goes on and reaches what is wanted all the same, or gives up and does so
// when it is started again: no mount is lost, nothing is left, and where something went wrong it says what.
func TestEveryCallFailsOnce(t *testing.T) {
	f := &failures{machines: newMachines(t), silent: map[string]int{}}
	calls, made := f.liveWhole(t, faultrun.Fallible)
	f.tasks = newTasks(len(faults()), every, calls)
	f.liveAll(t, f.tasks, f.live)
	t.Logf("made %d calls of %d fail: told of %d; gave up and was started again %d times; not told of: %v",
		f.tried, made, f.told, f.begun, f.silent)
	assert.Greater(t, f.tried, made/every*8/10, "calls that were really made to fail")
}

// live lives a life in which one call fails in each step.
func (f *failures) live(ctx context.Context) error {
	return f.machines.live(ctx, &life{calls: faultrun.Fallible, restart: true}, f.fail)
}

// fail goes through a step in which a call fails.
func (f *failures) fail(ctx context.Context, l *life, i int) error {
	next, ok := f.tasks.next(i)
	if !ok {
		return nil
	}
	if err := l.reach(ctx, steps()[i].from); err != nil {
		return err
	}
	gaveUp := l.restarts
	errno := faults()[next.variant]
	before := len(l.transcript())
	l.aim.take(next.call, faultrun.Fail(errno))
	err := steps()[i].do(l, ctx)
	point, _ := l.aim.rest()
	if point == "" {
		f.tasks.missed(i, next)
		return err
	}
	if err == nil {
		f.begin(l.restarts - gaveUp)
		err = f.check(l, l.transcript()[before:], point, errno)
	}
	if err != nil {
		return fmt.Errorf("call %d, %s, failed with %q: %w", next.call, point, errno.Error(), err)
	}
	return nil
}

// begin counts agents that were started again.
func (f *failures) begin(agents int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun += agents
}

// check looks at what was told in a step.
func (f *failures) check(l *life, text, point string, errno unix.Errno) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried++
	told := strings.Contains(strings.ToLower(text), errno.Error())
	if told {
		f.told++
	} else {
		f.silent[nameOfCall(point)]++
	}
	if strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
		return fmt.Errorf("the agent has panicked:\n%s", text)
	}
	if why := strings.Count("\n"+l.transcript(), "\norchestrator: "); why < l.restarts {
		return fmt.Errorf("of %d agents that gave up only %d said why:\n%s", l.restarts, why, l.transcript())
	}
	return nil
}

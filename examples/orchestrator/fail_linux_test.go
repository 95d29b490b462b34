package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount"
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

	mu       sync.Mutex
	tried    int
	begun    int            // how often the agent gave up, and was started again
	told     int            // how often the agent has told of the error
	excepted map[string]int // by reason
	silent   map[string]silence
}

// failure is one call that was made to fail.
type failure struct {
	call  string // as spell shows it, without the names of the machine
	errno unix.Errno
	again bool // it was made once more
	from  int  // where in what the agents have told
}

// silence is a failure without a report: how often, and the output of the first time.
type silence struct {
	times int
	text  string
}

// Each system call is made to fail once. The agent goes on and reaches what is wanted all the same, or gives up and does so
// when it is started again: no mount is lost, nothing is left, and it has said what went wrong. Of what it need not say
// exceptions is the list.
func TestEveryCallFailsOnce(t *testing.T) {
	f := &failures{machines: newMachines(t, ext4()), excepted: map[string]int{}, silent: map[string]silence{}}
	calls, made := f.liveWhole(t, faultrun.Fallible)
	f.tasks = newTasks(len(faults()), every, calls)
	f.liveAll(t, f.tasks, f.live)
	t.Logf("made %d calls fail, in lives of %d: told of %d; gave up and was started again %d times", f.tried, made, f.told, f.begun)
	for _, reason := range slices.Sorted(maps.Keys(f.excepted)) {
		t.Logf("%d not told of: %s", f.excepted[reason], reason)
	}
	// Which calls are in the ordinary run's sample is left to chance, and it is not the place where a new one is judged.
	tell := t.Logf
	if f.tasks.all {
		tell = t.Errorf
	}
	for _, call := range slices.Sorted(maps.Keys(f.silent)) {
		one := f.silent[call]
		tell("%d NOT TOLD OF, AND NO EXCEPTION: %s; what was told the first time:\n%s", one.times, call, one.text)
	}
	assert.Greater(t, f.tried, made/every*8/10, "calls that were really made to fail")
}

// live lives a life in which one call fails in each step.
func (f *failures) live(ctx context.Context) error {
	var failed []failure
	l := &life{calls: faultrun.Fallible, restart: true}
	err := f.machines.live(ctx, l, func(ctx context.Context, l *life, i int) error {
		one, err := f.fail(ctx, l, i)
		if one.call != "" {
			failed = append(failed, one)
		}
		return err
	})
	return errors.Join(err, f.review(l, failed))
}

// fail goes through a step in which a call fails.
func (f *failures) fail(ctx context.Context, l *life, i int) (failure, error) {
	next, ok := f.tasks.next(i)
	if !ok {
		return failure{}, nil
	}
	if err := l.reach(ctx, steps()[i]); err != nil {
		return failure{}, err
	}
	gaveUp := l.restarts
	one := failure{errno: faults()[next.variant], from: len(l.transcript())}
	l.aim.take(next.call, faultrun.Fail(one.errno))
	err := steps()[i].do(l, ctx)
	point, made := l.aim.rest()
	if point == "" {
		f.tasks.missed(i, next, made)
		return failure{}, err
	}
	one.call, one.again = l.node.general(point), l.aim.repeated()
	if err != nil {
		return one, fmt.Errorf("call %d, %s, failed with %q: %w", next.call, one.call, one.errno.Error(), err)
	}
	f.begin(l.restarts - gaveUp)
	awaitTold(l, &one)
	return one, nil
}

// awaitTold waits until the agent has told of a failure, or has made the call once more: when it has settled the manager may still
// grow a filesystem, and note that.
func awaitTold(l *life, one *failure) {
	for end := time.Now().Add(5 * time.Second); ; {
		one.again = l.aim.repeated()
		told := one.isTold(l.transcript()[one.from:]) || exceptionFor(*one) != ""
		if told || l.agent == nil || time.Now().After(end) {
			return
		}
		select {
		case <-l.agent.ended:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// isTold reports whether a text tells of a failure.
func (one failure) isTold(text string) bool {
	return strings.Contains(strings.ToLower(text), one.errno.Error()) ||
		// Of a mount that is what it means.
		one.errno == unix.ENOSPC && strings.Contains(text, mount.ErrTooManyMounts.Error())
}

// begin counts agents that were started again.
func (f *failures) begin(agents int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun += agents
}

// review looks at what was told in a life that has ended.
func (f *failures) review(l *life, failed []failure) error {
	text := l.transcript()
	for i, one := range failed {
		end := len(text)
		if i+1 < len(failed) {
			end = failed[i+1].from
		}
		f.note(one, text[one.from:end])
	}
	if strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
		return fmt.Errorf("the agent has panicked:\n%s", text)
	}
	if why := strings.Count("\n"+text, "\norchestrator: "); why < l.restarts {
		return fmt.Errorf("of %d agents that gave up only %d said why:\n%s", l.restarts, why, text)
	}
	return nil
}

// note sorts a failure by whether it was told of.
func (f *failures) note(one failure, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried++
	if one.isTold(text) {
		f.told++
		return
	}
	if reason := exceptionFor(one); reason != "" {
		f.excepted[reason]++
		return
	}
	key := fmt.Sprintf("%s: %s, repeated: %t", one.call, unix.ErrnoName(one.errno), one.again)
	first, ok := f.silent[key]
	if !ok {
		first.text = text
	}
	first.times++
	f.silent[key] = first
}

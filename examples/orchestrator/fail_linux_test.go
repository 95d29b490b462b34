package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// step is how many calls are passed over, to keep within CI's time, but for one of them.
const step = 8

// faults are the errors that calls are made to return.
func faults() []unix.Errno {
	return []unix.Errno{unix.EIO, unix.ENOSPC, unix.EBUSY, unix.EINTR, unix.EMFILE, unix.ENOMEM, unix.EPERM}
}

// failures is the test of all calls that can fail.
type failures struct {
	programs programs
	dir      string
	whole    *life // without a failure

	mu     sync.Mutex
	tried  int
	told   int // how often the agent has told of the error
	begun  int // how often it gave up, and was started again
	silent map[string]int
}

// Each system call is made to fail once. The agent goes on and reaches what is wanted all the same, or gives up and does so
// when it is started again: no mount is lost, nothing is left, and where something went wrong it says what.
func TestEveryCallFailsOnce(t *testing.T) {
	f := &failures{programs: build(t), dir: t.TempDir(), silent: map[string]int{}}
	node, err := f.newNode("whole")
	require.NoError(t, err)
	f.whole = &life{node: node, calls: faultrun.Fallible}
	require.NoError(t, f.whole.live(t.Context()))
	require.NoError(t, node.close())
	work := make(chan func(context.Context) error)
	go func() {
		defer close(work)
		for n := 1; n <= f.whole.made; n++ {
			for i, errno := range faults() {
				// Of each eighth call one error, of the next one another.
				if os.Getenv(envAll) != "" || n%step == 0 && n/step%len(faults()) == i {
					work <- func(ctx context.Context) error { return f.fail(ctx, n, errno) }
				}
			}
		}
	}()
	inParallel(t, work)
	t.Logf("made %d calls of %d fail: told of %d; gave up and was started again %d times; not told of: %v",
		f.tried, f.whole.made, f.told, f.begun, f.silent)
	assert.Greater(t, f.tried, f.whole.made/step*9/10, "calls that were really made to fail")
}

func (f *failures) newNode(name string) (*node, error) {
	dir := filepath.Join(f.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return newNode(f.programs, dir)
}

// fail makes call n fail, and sees that the life goes on to its end.
func (f *failures) fail(ctx context.Context, n int, errno unix.Errno) error {
	node, err := f.newNode(fmt.Sprintf("%d-%d", n, errno))
	if err != nil {
		return err
	}
	point := ""
	l := &life{node: node, calls: faultrun.Fallible, restart: true, judge: func(call faultrun.Call) faultrun.Verdict {
		if call.N != n {
			return faultrun.Verdict{}
		}
		point = call.String()
		return faultrun.Fail(errno)
	}}
	err = l.live(ctx)
	if err == nil {
		err = errors.Join(f.check(l, point, errno), f.checkGone(ctx, l))
	}
	if err != nil {
		err = fmt.Errorf("call %d, %s, failed with %q: %w", n, point, errno.Error(), err)
	}
	return errors.Join(err, node.close())
}

// check looks at a life that has come to its end.
func (f *failures) check(l *life, point string, errno unix.Errno) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if point == "" {
		return nil
	}
	f.tried++
	f.begun += l.restarts
	told := strings.Contains(strings.ToLower(l.told), errno.Error())
	if told {
		f.told++
	} else {
		f.silent[strings.SplitN(point, "(", 2)[0]]++
	}
	if strings.Contains(l.told, "panic") || strings.Contains(l.told, "goroutine ") {
		return fmt.Errorf("the agent has panicked:\n%s", l.told)
	}
	if l.restarts > 0 && !told {
		return fmt.Errorf("the agent gave up, and does not say why:\n%s", l.told)
	}
	return nil
}

// checkGone finds out whether anything is left. A record that could not be removed goes with the next start.
func (f *failures) checkGone(ctx context.Context, l *life) error {
	more := l.gone.beyond(f.whole.gone)
	if len(more) == 0 {
		return nil
	}
	for _, one := range more {
		if !strings.HasSuffix(one, ".record") {
			return fmt.Errorf("left on the node: %q; the agent has told:\n%s", more, l.told)
		}
	}
	next := &life{node: l.node}
	if err := next.start(ctx); err != nil {
		return err
	}
	if err := next.settle(ctx); err != nil {
		return err
	}
	if err := next.end(ctx); err != nil {
		return err
	}
	if more := next.gone.beyond(f.whole.gone); len(more) > 0 {
		return fmt.Errorf("left on the node, also by the next agent: %q; it has told:\n%s", more, next.told)
	}
	return nil
}

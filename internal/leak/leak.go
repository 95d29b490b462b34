// Package leak fails a run of tests that leaves goroutines or descriptors.
//
//	func TestMain(m *testing.M) { os.Exit(leak.Run(m)) }
//
// It checks once, after the last test, so the tests themselves need no change and take no longer. Goroutines and descriptors that
// are about to end have [Timeout] to do so. mount/mounttest.Main includes the check. The package is for tests only. It does not import
// testing, so every package may link it.
package leak

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Timeout is how long goroutines and descriptors may outlive the tests.
const Timeout = 10 * time.Second

// Runner runs tests, as *testing.M does.
type Runner interface {
	// Run runs the tests and returns the exit code.
	Run() int
}

// Run runs the tests and returns the exit code. It is not zero if a test failed, or if the tests left goroutines or descriptors,
// which Run writes to standard error. After a failed test, Run does not check for them.
func Run(tests Runner) int { return run(tests, Timeout, os.Stderr) }

func run(tests Runner, timeout time.Duration, out io.Writer) int {
	before := current()
	code := tests.Run()
	if code != 0 {
		return code
	}
	left := before.awaitLeft(timeout)
	if len(left) == 0 {
		return 0
	}
	fmt.Fprintf(out, "leak: the tests left %d goroutines or descriptors:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
	return 1
}

// state is the set of goroutines, by number, and of descriptors, by number and target.
type state map[string]bool

func current() state {
	startPoller()
	s := state{}
	for id := range goroutines() {
		s[id] = true
	}
	for _, file := range descriptors() {
		s[file] = true
	}
	return s
}

// awaitLeft waits until left returns nothing, and returns what is left after the timeout.
func (s state) awaitLeft(timeout time.Duration) []string {
	end := time.NewTimer(timeout)
	defer end.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left := s.left()
		if len(left) == 0 {
			return nil
		}
		// A mount.Mounter keeps one descriptor open until the garbage collector frees it.
		runtime.GC()
		select {
		case <-tick.C:
		case <-end.C:
			return left
		}
	}
}

// left returns the present goroutines and descriptors that are not in s.
func (s state) left() []string {
	var left []string
	for id, stack := range goroutines() {
		if !s[id] && !belongsToRuntime(stack) {
			left = append(left, stack)
		}
	}
	for _, file := range descriptors() {
		if !s[file] {
			left = append(left, "descriptor "+file)
		}
	}
	slices.Sort(left)
	return left
}

// goroutines returns the stacks of all goroutines except the caller's, by number.
func goroutines() map[string]string {
	buf := make([]byte, 1<<20)
	for n := runtime.Stack(buf, true); ; n = runtime.Stack(buf, true) {
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	stacks := map[string]string{}
	for i, stack := range strings.Split(string(buf), "\n\n") {
		id, _, ok := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		if ok && i > 0 { // The first is the caller's.
			stacks["goroutine "+id] = stack
		}
	}
	return stacks
}

// belongsToRuntime reports whether the standard library started the goroutine once and never ends it.
func belongsToRuntime(stack string) bool {
	for _, name := range []string{"\nos/signal.loop(", "created by os/signal.", "created by runtime.", "\nruntime/pprof.profileWriter("} {
		if strings.Contains(stack, name) {
			return true
		}
	}
	return false
}

// descriptors returns the open descriptors of this process, each as number and target. It returns none on a system without
// /proc/self/fd.
func descriptors() []string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var files []string
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err == nil { // The descriptor of the directory itself is already closed.
			files = append(files, entry.Name()+" "+target)
		}
	}
	return files
}

// startPoller makes the runtime open the descriptors that it opens once and keeps.
func startPoller() {
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	_ = r.Close()
	_ = w.Close()
}

// Package leak fails a run of tests that leaves goroutines or descriptors behind.
//
//	func TestMain(m *testing.M) { os.Exit(leak.Run(m)) }
//
// It looks once, after the last test, so it costs nothing while they run, and a test need not know of it. What is about to
// end is given time to. mount/mounttest.Main does it for the packages that use that. It is for tests only; it does not
// import testing, so that every package may link it.
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

// Patience is how long what the tests started and opened may outlive them.
const Patience = 10 * time.Second

// Runner runs tests, as *testing.M does.
type Runner interface {
	// Run runs them and returns the exit code.
	Run() int
}

// Run runs the tests and returns the exit code, which is not zero when one failed, or when a goroutine or a descriptor is
// there that was not there before. Those are written to standard error. A run that failed is not looked at.
func Run(tests Runner) int { return run(tests, Patience, os.Stderr) }

func run(tests Runner, patience time.Duration, out io.Writer) int {
	before := look()
	code := tests.Run()
	if code != 0 {
		return code
	}
	left := before.lasting(patience)
	if len(left) == 0 {
		return 0
	}
	fmt.Fprintf(out, "leak: the tests left %d goroutines or descriptors behind:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
	return 1
}

// state is what was there: goroutines by number, descriptors by number and target.
type state map[string]bool

func look() state {
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

// lasting returns what is there beyond s and does not go in time.
func (s state) lasting(patience time.Duration) []string {
	end := time.NewTimer(patience)
	defer end.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left := s.more()
		if len(left) == 0 {
			return nil
		}
		// A mount.Mounter keeps one descriptor for as long as it is reachable; the collector closes it.
		runtime.GC()
		select {
		case <-tick.C:
		case <-end.C:
			return left
		}
	}
}

// more returns what is there and was not in s.
func (s state) more() []string {
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

// goroutines returns the stacks of all goroutines but the caller's, by number.
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

// belongsToRuntime reports whether a goroutine is one that the standard library starts once and never ends.
func belongsToRuntime(stack string) bool {
	for _, name := range []string{"\nos/signal.loop(", "created by os/signal.", "created by runtime.", "\nruntime/pprof.profileWriter("} {
		if strings.Contains(stack, name) {
			return true
		}
	}
	return false
}

// descriptors returns the open descriptors of this process, each as number and target; none where the system does not
// tell.
func descriptors() []string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var files []string
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err == nil { // Else it is the one of the directory, which is closed by now.
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

package volumemanager

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// costSizes is the variable that says of how many volumes the costs are counted, few and many: "1000 8000".
const costSizes = "VOLUMEKIT_COST_SIZES"

// stepCost is what a step costs all volumes together.
type stepCost struct {
	calls int
	bytes int64 // that were read
	names map[string]int
}

// callCounter counts the system calls of a program.
type callCounter struct {
	mu    sync.Mutex
	calls int
	names map[uint32]int
}

// count is a [faultrun.Judge] that lets everything happen. What has eight bytes is an event counter, by which the runtime wakes
// its threads now and then.
func (c *callCounter) count(call faultrun.Call) faultrun.Verdict {
	if (call.Number == unix.SYS_READ || call.Number == unix.SYS_WRITE) && call.Args[2] == 8 {
		return faultrun.Verdict{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.names[call.Number]++
	return faultrun.Verdict{}
}

// take returns what was counted since the last time.
func (c *callCounter) take() (int, map[uint32]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls, names := c.calls, c.names
	c.calls, c.names = 0, map[uint32]int{}
	return calls, names
}

// bytesRead returns how many bytes a process has read so far, of files of the kernel too: those of the mount table are most.
func bytesRead(t *testing.T, pid int) (n int64) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(content), "rchar: %d", &n)
	require.NoError(t, err)
	return n
}

// costOfKind counts what each step of n volumes costs, in a process of its own.
func costOfKind(t *testing.T, kind string, n int) map[string]stepCost {
	t.Helper()
	counter := &callCounter{names: map[uint32]int{}}
	steps, stdout, err := os.Pipe()
	require.NoError(t, err)
	stdin, goOn, err := os.Pipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	node, err := faultrun.Start(t.Context(), faultrun.Program{
		Path: "/proc/self/exe", Env: append(os.Environ(), fmt.Sprintf("%s=%s %d %s", childCosts, kind, n, t.TempDir()), "GORACE=atexit_sleep_ms=0"),
		Stdin: stdin, Stdout: stdout, Stderr: &stderr, Calls: faultrun.Files, Judge: counter.count,
	})
	requireFilter(t, err, &stderr)
	require.NoError(t, stdout.Close())
	require.NoError(t, stdin.Close())
	costs := map[string]stepCost{}
	lines, before := bufio.NewScanner(steps), int64(0)
	for lines.Scan() {
		c, read := stepCost{names: map[string]int{}}, bytesRead(t, node.Pid())
		calls, numbers := counter.take()
		c.calls, c.bytes, before = calls, read-before, read
		for number, times := range numbers {
			c.names[faultrun.Call{Number: number}.Name()] += times
		}
		costs[lines.Text()] = c
		_, err := io.WriteString(goOn, "\n")
		require.NoError(t, err)
	}
	require.NoError(t, lines.Err())
	result, err := node.Wait()
	require.NoError(t, err)
	require.True(t, result.State.Success(), stderr.String())
	require.NoError(t, goOn.Close())
	require.NoError(t, steps.Close())
	return costs
}

// requireFilter skips where the kernel has no filter that tells of system calls.
func requireFilter(t *testing.T, err error, stderr fmt.Stringer) {
	t.Helper()
	if err != nil && strings.Contains(stderr.String(), "seccomp filter") && os.Getenv("CI") != "true" {
		t.Skip("missing: a seccomp filter with a listener: " + stderr.String())
	}
	require.NoError(t, err, stderr)
}

// The slack of what a volume costs among many. What the manager looks at by itself after a step may fall into the next one, which
// the sum over all steps does not see.
const (
	costGrowth = 1.1
	sumSlack   = 2  // calls over all steps
	stepSlack  = 15 // calls in one step
	// Bytes in one step. The whole table is read when an event of a mount is late, as on a busy machine: then up to 3,000 a
	// volume were seen. A look at the whole table for each volume reads 100 for each of the 90 others.
	bytesSlack = 4096
)

// sizesOf are how many volumes of a kind are counted: few and many.
func sizesOf(t *testing.T, kind string) (few, many int) {
	t.Helper()
	few, many = 20, 110
	if text := os.Getenv(costSizes); text != "" {
		_, err := fmt.Sscan(text, &few, &many)
		require.NoError(t, err)
	}
	if kind == "loopblock" { // Each is a device of the machine.
		return min(few, 10), min(many, 40)
	}
	return few, many
}

// perOther is how many calls of a step there may be for each other volume: loop-block looks at all loop devices, to prove that a
// file has one and no second.
func perOther(kind string) float64 {
	if kind == "loopblock" {
		return 12
	}
	return 0
}

// mostCalls are how many calls a volume may take over all steps, among many: a look that is made twice is three calls or more.
// Each operation looks at the root before and after its call of the plugin. The sum is bounded, since the look for orphans after a restart falls into that step or the next one.
var mostCalls = map[string]float64{"emptydir-memory": 80, "secret": 201}

// TestWhatAVolumeCostsIsTheSameAmongFewAndMany counts the system calls of every plugin's volumes under a manager: what is done to
// one volume asks the kernel nothing of the others. For NFS a tmpfs stands in.
func TestWhatAVolumeCostsIsTheSameAmongFewAndMany(t *testing.T) {
	mounttest.RequireRoot(t)
	for _, kind := range append(slices.Sorted(maps.Keys(volumesOfKinds())), "local", "loopblock") {
		t.Run(kind, func(t *testing.T) {
			few, many := sizesOf(t, kind)
			a, b := costOfKind(t, kind, few), costOfKind(t, kind, many)
			for range 2 { // What another process causes is not there each time.
				if most := mostCalls[kind]; most == 0 || callsOf(b, many) <= most {
					break
				}
				b = costOfKind(t, kind, many)
			}
			var sum [2]float64
			others := perOther(kind) * float64(many-few)
			for _, step := range costSteps[1:] {
				ofFew, ofMany := a[step].each(few), b[step].each(many)
				t.Logf("| %s | %s | %.1f | %.1f | %.0f | %.0f |", kind, step, ofFew.calls, ofMany.calls, ofFew.bytes, ofMany.bytes)
				sum[0], sum[1] = sum[0]+ofFew.calls, sum[1]+ofMany.calls
				if !assert.LessOrEqual(t, ofMany.calls, costGrowth*ofFew.calls+stepSlack+others, "calls to %s", step) {
					t.Logf("by name, of few: %v, of many: %v", a[step].names, b[step].names)
				}
				assert.LessOrEqual(t, ofMany.bytes, costGrowth*ofFew.bytes+bytesSlack+16*others, "bytes read to %s", step)
			}
			assert.LessOrEqual(t, sum[1], costGrowth*sum[0]+sumSlack+float64(len(costSteps))*others, "calls in all")
			if most := mostCalls[kind]; most > 0 {
				assert.LessOrEqual(t, sum[1], most, "calls in all")
			}
		})
	}
}

// callsOf returns how many calls a volume takes over all steps.
func callsOf(costs map[string]stepCost, volumes int) float64 {
	sum := 0.0
	for _, step := range costSteps[1:] {
		sum += costs[step].each(volumes).calls
	}
	return sum
}

// volumeCost is what a step costs one volume.
type volumeCost struct{ calls, bytes float64 }

func (c stepCost) each(volumes int) volumeCost {
	return volumeCost{calls: float64(c.calls) / float64(volumes), bytes: float64(c.bytes) / float64(volumes)}
}

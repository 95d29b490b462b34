package csi_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// failing returns the processes whose calls on their records fail. The paths of the records contain the strings in about.
func failing(m *machine) map[string]failure {
	return map[string]failure{
		"agent":  {&m.agent, []string{"/records/", "/records\""}},
		"driver": {&m.driver, []string{"driver-state", "driver-run"}},
	}
}

// failure restricts the failed calls to those of one process on paths that contain a string of about.
type failure struct {
	aim   *aim
	about []string
}

// only restricts the aim to calls on records.
func (f failure) only() {
	f.aim.only = func(c faultrun.Call) bool {
		text := c.String()
		for _, part := range f.about {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
}

// faults returns the errors of a disk that is full, broken or read-only, and of a process without free descriptors.
func faults() []unix.Errno { return []unix.Errno{unix.ENOSPC, unix.EIO, unix.EROFS, unix.EMFILE} }

// outage is the number of consecutive calls that fail in every other run; in the rest, one call fails.
const outage = 5

// TestFailedRecordsLoseNothing fails system calls on the records of the agent or of the driver: open, write, sync, rename, unlink.
// One call fails, or several in a row, while pods use volumes, pass them to the next pod and expand them. The agent repeats what
// failed. Each pod reads what the first pod wrote. No volume is mounted or attached twice, and nothing is left at the end.
func TestFailedRecordsLoseNothing(t *testing.T) {
	programs := build(t)
	whole := newMachine(t, programs)
	whole.calls = faultrun.Fallible
	for _, f := range failing(whole) {
		f.only()
	}
	require.NoError(t, whole.live(t.Context(), whole.compare(t.Context(), whole)), "%s", &whole.logs)
	whole.end(t, whole)
	for who := range failing(whole) {
		t.Run(who, func(t *testing.T) { failEvery(t, whole, who) })
	}
}

func failEvery(t *testing.T, whole *machine, who string) {
	calls := failing(whole)[who].aim.made
	require.Positive(t, calls)
	step := calls*len(faults())/killPoints + 1
	if os.Getenv(envKillAll) != "" {
		step = 1
	}
	lives, failed := 0, 0
	for i := 0; i < calls*len(faults()); i += step {
		n, errno := 1+i%calls, faults()[i/calls]
		m := newMachine(t, whole.programs)
		m.calls, m.again = faultrun.Fallible, true
		f := failing(m)[who]
		f.only()
		f.aim.at, f.aim.then = []int{n}, func() faultrun.Verdict { return faultrun.Fail(errno) }
		for next := 1; lives%2 == 1 && next < outage; next++ {
			f.aim.at = append(f.aim.at, n+next)
		}
		require.NoError(t, m.live(t.Context(), m.compare(t.Context(), whole)), "%v of %s at calls %v of %d: %s", errno, who, f.aim.at, calls, &m.logs)
		m.end(t, whole)
		if t.Failed() {
			require.FailNow(t, "see above", "%v of %s at calls %v of %d: %s", errno, who, f.aim.at, calls, &m.logs)
		}
		lives++
		failed += f.aim.hits
	}
	t.Logf("%d calls of %s failed in %d lives of %d calls on records", failed, who, lives, calls)
	assert.GreaterOrEqual(t, failed, lives*9/10)
}

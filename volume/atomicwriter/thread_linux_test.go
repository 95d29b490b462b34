package atomicwriter

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onThreadOf calls do on a thread of its own that is an ordinary user. The directory "volume" in parent is reached by a
// descriptor, since the directories above may be closed to that user. The thread ends with the call.
func onThreadOf(t *testing.T, id uintptr, parent string, do func(dir string)) {
	t.Helper()
	f, err := os.Open(parent)
	require.NoError(t, err)
	defer f.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: no other goroutine gets this thread
		for _, call := range [][4]uintptr{
			{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id},
		} {
			_, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]) // of this thread only
			if !assert.Zero(t, errno) {
				return
			}
		}
		do(fmt.Sprintf("/proc/self/fd/%d/volume", f.Fd()))
	}()
	<-ended
}

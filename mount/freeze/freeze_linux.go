package freeze

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
	"github.com/volumekit/volumekit/mount"
)

// The requests of ioctl, from linux/fs.h. They are the same on each architecture.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

func syncAll(dir *os.File) error {
	if err := descriptor.Call(dir, unix.Syncfs); err != nil {
		return fmt.Errorf("syncfs of %q: %w", dir.Name(), err)
	}
	return nil
}

func freezeNow(dir *os.File) error {
	err := descriptor.Call(dir, func(fd int) error { return unix.IoctlSetInt(fd, fiFreeze, 0) })
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("FIFREEZE of %q: thaw it with fsfreeze -u if no program needs it frozen: %w: %w", dir.Name(), ErrFrozen, err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY):
		return fmt.Errorf("FIFREEZE of %q: %w: %w", dir.Name(), mount.ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("FIFREEZE of %q: %w", dir.Name(), err)
	}
	return nil
}

// thawNow reports whether the filesystem was frozen.
func thawNow(dir *os.File) (was bool, err error) {
	err = descriptor.Call(dir, func(fd int) error { return unix.IoctlSetInt(fd, fiThaw, 0) })
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("FITHAW of %q: %w", dir.Name(), err)
	}
	return true, nil
}

// guard is the process that thaws a filesystem at the end of this one. Its standard input is a pipe that only this
// process writes to, so the pipe ends with this process. The directory is its descriptor 3. It echoes what it reads
// through descriptor 4.
type guard struct {
	process *exec.Cmd
	alive   io.WriteCloser
	echo    *os.File
}

// script reads the pipe until the pipe ends or the time is over, with the directory closed. It thaws unless it has read
// both words. timeout sends SIGKILL, because tee ignores the signals that the shell ignores.
const (
	script = `trap "" TERM INT HUP
[ "$("$1" -s KILL "$2" "$3" /dev/fd/4 3>&-)" = waitno ] || exec "$4" --unfreeze /proc/self/fd/3`
	wordWait, wordNo = "wait", "no"
)

// startLimit bounds the start of a guard.
const startLimit = 10 * time.Second

func startGuard(dir *os.File, limit time.Duration) (*guard, error) {
	var tools []string
	for _, name := range []string{"sh", "timeout", "tee", "fsfreeze"} {
		path, err := find(name)
		if err != nil {
			return nil, err
		}
		tools = append(tools, path)
	}
	echo, echoes, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	seconds := fmt.Sprint(int64(math.Ceil(limit.Seconds())))
	process := &exec.Cmd{
		Path: tools[0], Args: []string{"sh", "-c", script, "volumekit-thaw", tools[1], seconds, tools[2], tools[3]},
		Env: []string{"LC_ALL=C"}, Dir: "/", ExtraFiles: []*os.File{dir, echoes},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	alive, err := process.StdinPipe()
	if err == nil {
		err = process.Start()
	}
	echoes.Close()
	if err != nil {
		echo.Close()
		return nil, fmt.Errorf("starting what thaws %q: %w: %w", dir.Name(), ErrNoGuard, err)
	}
	g := &guard{process: process, alive: alive, echo: echo}
	// When the guard's word has come back, all programs that it needs run.
	_, err = io.WriteString(alive, wordWait)
	if err == nil {
		err = echo.SetReadDeadline(time.Now().Add(startLimit))
	}
	if err == nil {
		_, err = io.ReadFull(echo, make([]byte, len(wordWait)))
	}
	if err != nil {
		_ = process.Process.Kill()
		g.thaw()
		return nil, fmt.Errorf("what thaws %q does not run: %w: %w", dir.Name(), ErrNoGuard, err)
	}
	return g, nil
}

// check returns an error that matches ErrNoGuard if the guard has ended.
func (g *guard) check() error {
	var state unix.Siginfo
	err := unix.Waitid(unix.P_PID, g.process.Process.Pid, &state, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err == nil && state.Signo == 0 {
		return nil
	}
	return errors.Join(fmt.Errorf("what thaws the filesystem has ended: %w", ErrNoGuard), err)
}

// end ends the guard, which then does not thaw, and waits for all of its processes.
func (g *guard) end() {
	_, _ = io.WriteString(g.alive, wordNo) // A guard that has ended reads nothing.
	g.thaw()
}

// thaw makes the guard thaw the filesystem, unless end was called, and waits for it.
func (g *guard) thaw() {
	_ = g.alive.Close()
	_ = g.process.Wait()
	_ = g.echo.Close()
}

// find looks a program up in the system's directories, and not in PATH.
func find(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		path := filepath.Join(dir, name)
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is missing: install coreutils and util-linux: %w", name, ErrNoGuard)
}

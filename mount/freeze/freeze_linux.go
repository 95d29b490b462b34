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

	"github.com/volumekit/volumekit/mount"
)

// The requests of ioctl, from linux/fs.h. They are the same on each architecture.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

func syncAll(dir *os.File) error {
	if err := control(dir, unix.Syncfs); err != nil {
		return fmt.Errorf("syncfs of %q: %w", dir.Name(), err)
	}
	return nil
}

func freezeNow(dir *os.File) error {
	err := control(dir, func(fd int) error { return unix.IoctlSetInt(fd, fiFreeze, 0) })
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
	err = control(dir, func(fd int) error { return unix.IoctlSetInt(fd, fiThaw, 0) })
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("FITHAW of %q: %w", dir.Name(), err)
	}
	return true, nil
}

func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) {
		inner = f(int(fd))
		for errors.Is(inner, unix.EINTR) {
			inner = f(int(fd))
		}
	}); err != nil {
		return err
	}
	return inner
}

// guard is the process that thaws a filesystem when this one has ended. Its standard input is a pipe that only this process
// writes to, so the kernel ends it with this process. The directory is its descriptor 3.
type guard struct {
	process *exec.Cmd
	alive   io.Closer
}

// script waits, without the directory, until the pipe has ended or the time is over.
const script = `"$1" "$2" "$3" 3>&- >/dev/null; exec "$4" -u /proc/self/fd/3`

func startGuard(dir *os.File, limit time.Duration) (*guard, error) {
	var tools []string
	for _, name := range []string{"sh", "timeout", "cat", "fsfreeze"} {
		path, err := find(name)
		if err != nil {
			return nil, err
		}
		tools = append(tools, path)
	}
	seconds := fmt.Sprint(int64(math.Ceil(limit.Seconds())))
	process := &exec.Cmd{
		Path: tools[0], Args: []string{"sh", "-c", script, "volumekit-thaw", tools[1], seconds, tools[2], tools[3]},
		Env: []string{"LC_ALL=C"}, Dir: "/", ExtraFiles: []*os.File{dir},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	alive, err := process.StdinPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("starting what thaws %q: %w", dir.Name(), err)
	}
	return &guard{process: process, alive: alive}, nil
}

// end ends the guard before it thaws. The shell is killed first, so nothing follows the end of the pipe.
func (g *guard) end() {
	_ = g.process.Process.Kill()
	_ = g.alive.Close()
	_ = g.process.Wait()
}

// find looks a program up in the directories of the system, and not in PATH.
func find(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		path := filepath.Join(dir, name)
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is missing: install coreutils and util-linux: %w", name, ErrNoGuard)
}

package faultrun

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is the kernel's struct seccomp_notif.
type notification struct {
	id     uint64
	thread uint32
	_      uint32
	data   struct {
		number int32
		arch   uint32
		at     uint64
		args   [6]uint64
	}
}

// response is the kernel's struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// next waits for a call. io.EOF says that no process is left that could make one.
func next(listener int) (notification, error) {
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		_, err := unix.Poll(poll, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return notification{}, fmt.Errorf("waiting for a call: %w", err)
		case poll[0].Revents&unix.POLLIN == 0:
			return notification{}, io.EOF
		}
		var n notification
		err = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) { // The thread has died meanwhile.
			return n, fmt.Errorf("receiving a call: %w", err)
		}
	}
}

// respond lets a call happen, or fail. A thread that has died meanwhile needs no answer.
func (r *Run) respond(n notification, v Verdict) {
	answer := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if v.errno != 0 {
		answer = response{id: n.id, errno: -int32(v.errno)}
	}
	_ = ioctl(r.listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer))
}

func (r *Run) respondAfter(n notification, v Verdict) {
	timer := time.NewTimer(v.wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		r.respond(n, v)
	case <-r.ended:
	}
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// killProcessOf kills the process that a thread belongs to. The thread sleeps until it is answered, so that it is that
// thread still; or it is dead.
func killProcessOf(thread int) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return
	}
	_, after, _ := bytes.Cut(status, []byte("\nTgid:"))
	id, _, _ := bytes.Cut(after, []byte("\n"))
	if pid, err := strconv.Atoi(string(bytes.TrimSpace(id))); err == nil {
		_ = unix.Kill(pid, unix.SIGKILL) // It fails only when the process has ended.
	}
}

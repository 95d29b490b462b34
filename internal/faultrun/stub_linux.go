package faultrun

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// envStub tells a process that it is to become a program; its value is an order.
const envStub = "VOLUMEKIT_FAULTRUN"

// order is what the second process is told beside its arguments: the set of calls, and whether there is a namespace.
type order struct {
	calls     Calls
	namespace bool
}

const orderFormat = "%d %t"

func (o order) String() string { return fmt.Sprintf(orderFormat, o.calls, o.namespace) }

func parseOrder(text string) (o order, err error) {
	_, err = fmt.Sscanf(text, orderFormat, &o.calls, &o.namespace)
	return o, err
}

// The descriptors that the second process is given: the socket for the listener and, perhaps, the namespace.
const (
	fdSocket    = 3
	fdNamespace = 4
)

// stubFailed is the exit code of a second process that could not become the program.
const stubFailed = 125

// Main does nothing in the test binary, and never returns in the process that [Start] makes of it, which becomes the
// program. Call it first in TestMain.
func Main() {
	text, ok := os.LookupEnv(envStub)
	if !ok {
		return
	}
	order, err := parseOrder(text)
	if err == nil {
		err = become(order)
	}
	fmt.Fprintln(os.Stderr, "faultrun:", err)
	os.Exit(stubFailed)
}

// become installs the filter, sends its listener to the runner, and becomes the program. It returns only with an error.
func become(o order) error {
	// The filter is that of this thread, which must then be the one that becomes the program.
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // Under the filter this thread must not be made to do something for the others.
	if len(os.Args) < 2 {
		return errors.New("no program was named")
	}
	unix.CloseOnExec(fdSocket)
	if o.namespace {
		unix.CloseOnExec(fdNamespace)
		if err := moveTo(fdNamespace, os.Getenv("PWD")); err != nil {
			return err
		}
	}
	if err := os.Unsetenv(envStub); err != nil {
		return err
	}
	path, args, env := os.Args[1], os.Args[1:], os.Environ()
	listener, err := install(filter(o.calls.rules()))
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(fdSocket, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("sending the listener to the runner: %w", err)
	}
	return fmt.Errorf("%s: %w", path, unix.Exec(path, args, env))
}

// moveTo enters a mount namespace and the working directory there.
func moveTo(namespace uintptr, dir string) error {
	if err := enter(namespace); err != nil {
		return err
	}
	if dir == "" {
		return nil
	}
	return os.Chdir(dir)
}

// install puts the calling thread under a filter and returns the filter's listener.
func install(program []unix.SockFilter) (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("giving up new privileges: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// A call that the runner has been told of is not given up for a signal, so that it is not made, and counted, twice.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, fmt.Errorf("installing a seccomp filter with a listener, which needs Linux 5.19: %w", errno)
	}
	return int(fd), nil
}

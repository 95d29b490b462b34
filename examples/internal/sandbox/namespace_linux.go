package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// The environment variables in which the program passes its namespaces to its second run.
const (
	outerMounts = "VOLUMEKIT_QUICKSTART_OUTER_MOUNT_NAMESPACE"
	outerUsers  = "VOLUMEKIT_QUICKSTART_OUTER_USER_NAMESPACE"
)

// Enter runs the program in its own mount namespace, from which no mount propagates. If the program is not in one yet,
// Enter runs it again in one, and returns false and the exit code of that run.
func Enter() (inside bool, code int, err error) {
	if outer := os.Getenv(outerMounts); outer == "" || outer == namespace("mnt") {
		code, err = runAgain()
		return false, code, err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return false, 0, fmt.Errorf("make the mounts of the new namespace private: %w", err)
	}
	return true, 0, nil
}

// namespace returns the identity of this process's namespace of a kind; empty if /proc does not have it.
func namespace(kind string) string {
	id, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return ""
	}
	return id
}

// runAgain runs the program in a new mount namespace and returns its exit code. Without permission for that, it also
// makes a user namespace.
func runAgain() (int, error) {
	// The kernel sends the child its parent-death signal when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, endingSignals()...)
	defer signal.Stop(signals)

	cmd, err := start(unix.CLONE_NEWNS)
	if errors.Is(err, unix.EPERM) {
		cmd, err = start(unix.CLONE_NEWNS | unix.CLONE_NEWUSER)
	}
	if err != nil {
		return 0, fmt.Errorf("start in a private mount namespace: %w; run it as root, in a container with --privileged, "+
			"or where user namespaces are allowed (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "+
			"kernel.apparmor_restrict_unprivileged_userns)", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go forward(signals, cmd.Process, ended)
	return childExit(cmd.Wait())
}

func start(flags uintptr) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...) //nolint:noctx // it is told to end by signals, and never killed
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), outerMounts+"="+namespace("mnt"), outerUsers+"="+namespace("user"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: unix.SIGTERM}
	if flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = ownID(os.Getuid())
		cmd.SysProcAttr.GidMappings = ownID(os.Getgid())
	}
	return cmd, cmd.Start()
}

// ownID maps this process's own id to root in the new namespace. An ordinary user may map no other id.
func ownID(id int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
}

// forward sends every signal to the child, which unmounts its volumes and ends.
func forward(signals <-chan os.Signal, child *os.Process, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case s := <-signals:
			_ = child.Signal(s) // it fails only after the child has ended
		}
	}
}

// childExit returns the exit code of a child, from the result of Wait. A killed child could not clean up.
func childExit(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 0, fmt.Errorf("wait for the program's second run: %w", err)
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 0, fmt.Errorf("the second run was %w: its mounts are gone with its namespace; files and loop devices stay "+
			"under the root directory that it named: detach the devices (losetup -a, losetup -d) and remove it",
			&SignalError{Signal: status.Signal()})
	}
	return exit.ExitCode(), nil
}

// HowToEnter returns the command with which another shell sees the mounts of this process.
func HowToEnter() string {
	if os.Getenv(outerUsers) != namespace("user") {
		return fmt.Sprintf("nsenter -t %d --user --mount --preserve-credentials", os.Getpid())
	}
	return fmt.Sprintf("nsenter -t %d --mount", os.Getpid())
}

// InUserNamespace reports whether this process's root is not the machine's root: the first user namespace maps every id
// to itself. See user_namespaces(7).
func InUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	var inner, outer, size uint64
	_, err = fmt.Sscan(string(text), &inner, &outer, &size)
	return err != nil || inner != 0 || outer != 0 || size != 1<<32-1
}

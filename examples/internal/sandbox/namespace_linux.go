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

// The environment variables by which the program tells its second run which namespaces it came from.
const (
	outerMounts = "VOLUMEKIT_QUICKSTART_OUTER_MOUNT_NAMESPACE"
	outerUsers  = "VOLUMEKIT_QUICKSTART_OUTER_USER_NAMESPACE"
)

// Enter makes sure that the program runs in a mount namespace of its own, from which no mount spreads. Unless
// it does so already, the program is run again in one, and Enter returns false and the exit code of that run.
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

// namespace returns what identifies this process's namespace of a kind; empty when /proc does not tell.
func namespace(kind string) string {
	id, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return ""
	}
	return id
}

// runAgain runs the program in a new mount namespace or, where that is not permitted, in a new user and mount
// namespace, and returns its exit code.
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

// ownID maps this process's own id, which is all that an ordinary user may map, to root in the new namespace.
func ownID(id int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
}

// forward hands every signal on to the child, which takes the volumes away and ends.
func forward(signals <-chan os.Signal, child *os.Process, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case s := <-signals:
			_ = child.Signal(s) // it fails only when the child has ended, which is what the signal asks for
		}
	}
}

// childExit returns the exit code of a child, from what Wait returned. A child that was killed could not tidy up.
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

// HowToEnter returns the command that shows another shell what this process has mounted.
func HowToEnter() string {
	if os.Getenv(outerUsers) != namespace("user") {
		return fmt.Sprintf("nsenter -t %d --user --mount --preserve-credentials", os.Getpid())
	}
	return fmt.Sprintf("nsenter -t %d --mount", os.Getpid())
}

// InUserNamespace reports whether this process's root is not the machine's: in the first user namespace every id is
// mapped to itself. See user_namespaces(7).
func InUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	var inner, outer, size uint64
	_, err = fmt.Sscan(string(text), &inner, &outer, &size)
	return err != nil || inner != 0 || outer != 0 || size != 1<<32-1
}

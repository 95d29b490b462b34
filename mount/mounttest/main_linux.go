package mounttest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

const namespaceLink = "/proc/self/ns/mnt"

// inside reports whether this process is in a mount namespace that Main made.
func inside() bool {
	outside := os.Getenv(envOutside)
	if outside == "" {
		return false
	}
	here, err := os.Readlink(namespaceLink)
	return err == nil && here != outside
}

// realRoot reports whether this process is root in a user namespace that maps every user, as the first one does.
func realRoot() bool {
	if os.Geteuid() != 0 {
		return false
	}
	content, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	return strings.Join(strings.Fields(string(content)), " ") == "0 0 4294967295"
}

// makePrivate keeps what is mounted here from other namespaces, and what is mounted there from here.
func makePrivate() error {
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// runAgain runs this binary in a new namespace and returns its exit code. An error means that the namespace could not be
// made, so that no test has run.
func runAgain() (int, error) {
	outside, err := os.Readlink(namespaceLink)
	if err != nil {
		return 0, err
	}
	temp, err := tempDir()
	if err != nil {
		return 0, err
	}
	defer removeTemp(temp)
	// The child is killed when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child := again(temp, outside)
	if err := child.Start(); err != nil {
		return 0, fmt.Errorf("starting the tests in a new namespace: %w%s", err, whatToDo())
	}
	return wait(child), nil
}

// whatToDo says what an ordinary user lacks where no namespace can be made.
func whatToDo() string {
	if os.Geteuid() == 0 {
		return ""
	}
	return ": run them as root, or let ordinary users make user namespaces (sysctl user.max_user_namespaces," +
		" kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
}

// again is the command that runs this binary in a new namespace.
func again(temp, outside string) *exec.Cmd {
	//nolint:forbidigo // The tests end the child by its own time-out; TestMain has no context.
	child := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	child.Args[0] = os.Args[0]
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = append(os.Environ(), "TMPDIR="+temp, envOutside+"="+outside)
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		child.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		child.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		child.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return child
}

// wait passes signals on to the child, so that a time-out of the go command shows the child's goroutines.
func wait(child *exec.Cmd) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer signal.Stop(signals)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = child.Wait() // what matters of it is in ProcessState
	}()
	for {
		select {
		case s := <-signals:
			_ = child.Process.Signal(s) // it may have ended
		case <-ended:
			if child.ProcessState.Success() {
				return 0
			}
			return max(child.ProcessState.ExitCode(), 1)
		}
	}
}

// removeTemp removes the temporary directory, which tests that clean up have left empty. What they have left in it stays,
// for a person to look at: nothing is deleted where a mount may have been.
func removeTemp(dir string) {
	if err := os.Remove(dir); err != nil {
		fmt.Fprintln(os.Stderr, "mounttest: the tests left files behind:", err)
	}
}

// leftovers lists the mounts below dir and the loop devices backed by files there.
func leftovers(machine *mount.Mounter, dir string) ([]string, error) {
	left, err := mountsBelow(machine, dir)
	if err != nil {
		return nil, err
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, name := range backing {
		content, err := os.ReadFile(name)
		if err != nil {
			continue // detached since
		}
		if file := strings.TrimSpace(string(content)); strings.HasPrefix(file, dir+"/") {
			left = append(left, "loop device "+strings.Split(name, "/")[3]+" backed by "+file)
		}
	}
	return left, nil
}

func mountsBelow(machine *mount.Mounter, dir string) ([]string, error) {
	//nolint:forbidigo // TestMain has no context, and reading the table does not block.
	table, err := machine.List(context.Background())
	if err != nil {
		return nil, err
	}
	var found []string
	own := true // The first at dir itself is that of protectMachine.
	for _, m := range table {
		if m.Path == dir && own {
			own = false
			continue
		}
		if m.Path == dir || strings.HasPrefix(m.Path, dir+"/") {
			found = append(found, "mount at "+m.Path)
		}
	}
	return found, nil
}

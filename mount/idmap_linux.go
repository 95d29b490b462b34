package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

func (m *Mounter) checkIDMappings(ctx context.Context, plan *Plan) error {
	tree, err := m.changer.cloneTree(ctx, plan)
	if errors.Is(err, errNoSyscall) {
		return noIDMappings(err)
	}
	if err != nil {
		return fmt.Errorf("id-mapped mount of %q: %w", plan.Source, err)
	}
	closeFD(tree) // which ends the mount
	return nil
}

func noIDMappings(err error) error {
	return fmt.Errorf("id-mapped mounts need Linux 5.12: %w: %w", ErrUnsupported, err)
}

// mapIDs gives the ranges of the plan to a mount that is not attached yet. The kernel allows no later change.
func (c changer) mapIDs(ctx context.Context, tree int, plan *Plan, recursive uint) error {
	if plan.IDMappings.IsZero() {
		return nil
	}
	if c.reader.without.has(FeatureMountSetattr) {
		return errNoSyscall
	}
	if err := abandonable.Begin(ctx, "clone(CLONE_NEWUSER)"); err != nil {
		return err
	}
	users, err := openUserNamespace(plan.IDMappings)
	if err != nil {
		return err
	}
	defer users.Close()
	if err := abandonable.Begin(ctx, "mount_setattr"); err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|recursive, &attr)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSYS):
		return noIDMappings(err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("mount_setattr: this kernel cannot map the owners in this filesystem, or in one mounted beneath: %w: %w", ErrUnsupported, err)
	default:
		return fmt.Errorf("mount_setattr(MOUNT_ATTR_IDMAP): %w", err)
	}
}

// openUserNamespace makes a user namespace with the mappings, and opens it. The kernel makes one for a new process alone. That
// process is a copy of this one which the kernel stops before it runs any code of the program, and which is killed here.
func openUserNamespace(m IDMappings) (*os.File, error) {
	runtime.LockOSThread() // The process ends with the thread that started it.
	defer runtime.UnlockOSThread()
	process, err := os.StartProcess("/proc/self/exe", []string{"user-namespace"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: processMappings(m.UIDs), GidMappings: processMappings(m.GIDs),
		Ptrace: true, Pdeathsig: unix.SIGKILL,
	}})
	if err != nil {
		return nil, fmt.Errorf("user namespace for an id-mapped mount (sysctl user.max_user_namespaces limits their number): %w", err)
	}
	// The pid is this process's until Wait returns.
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", process.Pid))
	if err != nil {
		err = fmt.Errorf("user namespace for an id-mapped mount: %w", err)
	}
	_ = process.Kill()
	_, _ = process.Wait() // An error says that the program waits for all its children elsewhere.
	return users, err
}

func processMappings(ranges []IDMapping) []syscall.SysProcIDMap {
	all := make([]syscall.SysProcIDMap, len(ranges))
	for i, r := range ranges {
		all[i] = syscall.SysProcIDMap{ContainerID: int(r.ContainerID), HostID: int(r.HostID), Size: int(r.Size)}
	}
	return all
}

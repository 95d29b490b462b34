package mount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// filesystem mounts a filesystem at p.
func (c changer) filesystem(ctx context.Context, p *entry, plan *Plan) error {
	if err := plan.checkSELinux(); err != nil {
		return err
	}
	tree, err := c.newTree(ctx, plan)
	if errors.Is(err, errNoSyscall) {
		return p.attach(ctx, true, plan, func(t *target) error { return c.filesystemOld(ctx, t, plan) })
	}
	if err != nil {
		return err
	}
	defer closeFD(tree)
	return p.attach(ctx, true, plan, func(t *target) error { return move(ctx, tree, t, plan) })
}

// newTree makes the filesystem's superblock and a detached mount of it.
func (c changer) newTree(ctx context.Context, plan *Plan) (int, error) {
	if c.reader.without.has(FeatureMountFD) {
		return -1, errNoSyscall
	}
	if err := abandonable.Begin(ctx, "fsopen"); err != nil {
		return -1, err
	}
	fd, err := unix.Fsopen(plan.FSType, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", unknownFilesystem(plan.FSType, missing(err)))
	}
	defer closeFD(fd)
	if err := plan.configure(fd); err != nil {
		return -1, err
	}
	if err := abandonable.Begin(ctx, "fsconfig(CREATE)"); err != nil {
		return -1, err
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return -1, plan.explain("creating the superblock", fd, err)
	}
	if err := abandonable.Begin(ctx, "fsmount"); err != nil {
		return -1, err
	}
	attr := plan.mountAttr()
	tree, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, int(attr.Attr_set))
	if err != nil {
		return -1, plan.explain("fsmount", fd, err)
	}
	return tree, nil
}

// unknownFilesystem marks the error of a filesystem that the kernel does not have.
func unknownFilesystem(fsType string, err error) error {
	if !errors.Is(err, unix.ENODEV) {
		return err
	}
	return fmt.Errorf("the kernel has no filesystem %q: %w: %w", fsType, ErrUnsupported, err)
}

// configure gives a filesystem context the source and, one by one, the options.
func (p *Plan) configure(fd int) error {
	if p.Source != "" && !p.Remount {
		if err := unix.FsconfigSetString(fd, "source", p.Source); err != nil {
			return p.explain("setting the source", fd, err)
		}
	}
	if p.SELinuxContext != "" {
		if err := unix.FsconfigSetString(fd, "context", p.SELinuxContext); err != nil {
			return p.explain("setting the SELinux context", fd, err)
		}
	}
	for _, option := range p.superOptions() {
		key, value, ok := strings.Cut(option, "=")
		var err error
		if ok {
			err = unix.FsconfigSetString(fd, key, value)
		} else {
			err = unix.FsconfigSetFlag(fd, key)
		}
		if err != nil {
			return p.explain("setting option "+optionKey(p.scrub(key)), fd, err)
		}
	}
	return nil
}

// superOptions returns the options for the filesystem. The filesystem of a read-only mount is read-only too: the kernel then
// writes nothing to the device.
func (p *Plan) superOptions() []string {
	switch {
	case slices.Contains(p.Set, "ro"):
		return append([]string{"ro"}, p.Data...)
	case slices.Contains(p.Clear, "ro"):
		return append([]string{"rw"}, p.Data...)
	}
	return p.Data
}

// explain adds the kernel's messages for the filesystem context to err, without secrets.
func (p *Plan) explain(what string, fd int, err error) error {
	var messages []string
	buffer := make([]byte, 4096)
	for range maxTries {
		n, readErr := unix.Read(fd, buffer)
		if readErr != nil || n <= 0 {
			break // ENODATA: that was all
		}
		// Each begins with its severity, "e " for an error: see fs_context in the kernel's documentation.
		_, message, _ := strings.Cut(strings.TrimSpace(string(buffer[:n])), " ")
		messages = append(messages, message)
	}
	if len(messages) == 0 {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w (kernel: %s)", what, err, p.scrub(strings.Join(messages, "; ")))
}

// reconfigure changes the filesystem of the mount whose root is open as fd.
func (c changer) reconfigure(ctx context.Context, fd int, plan *Plan) error {
	if c.reader.without.has(FeatureMountFD) {
		return errNoSyscall
	}
	if err := abandonable.Begin(ctx, "fspick"); err != nil {
		return err
	}
	picked, err := unix.Fspick(fd, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH|unix.FSPICK_NO_AUTOMOUNT)
	if err != nil {
		return fmt.Errorf("fspick: %w", missing(err))
	}
	defer closeFD(picked)
	if err := plan.configure(picked); err != nil {
		return err
	}
	if err := abandonable.Begin(ctx, "fsconfig(RECONFIGURE)"); err != nil {
		return err
	}
	if err := unix.FsconfigReconfigure(picked); err != nil {
		return plan.explain("changing the filesystem", picked, err)
	}
	return nil
}

// filesystemOld mounts by mount(2).
func (c changer) filesystemOld(ctx context.Context, t *target, plan *Plan) error {
	super, data, err := plan.oldData()
	if err != nil {
		return err
	}
	if err := abandonable.Begin(ctx, "mount"); err != nil {
		return err
	}
	if err := t.open(); err != nil {
		return err
	}
	if err := unix.Mount(plan.Source, fdPath(t.fd), plan.FSType, plan.flags(nil)|super, data); err != nil {
		return fmt.Errorf("mount: %w", unknownFilesystem(plan.FSType, err))
	}
	if err := c.finishOld(ctx, t, plan); err != nil {
		return t.undo(ctx, err)
	}
	return nil
}

// oldData joins the options for mount(2), which takes them as one string, and some as flags.
func (p *Plan) oldData() (flags uintptr, data string, err error) {
	var words []string
	for _, option := range p.Data {
		if strings.Contains(option, ",") {
			return 0, "", fmt.Errorf("a sensitive option holds a comma, which takes Linux 5.2: %w", ErrUnsupported)
		}
		if flag, ok := superFlags[option]; ok {
			flags |= flag
			continue
		}
		words = append(words, option)
	}
	if p.SELinuxContext != "" {
		words = append(words, p.quotedContext())
	}
	return flags, strings.Join(words, ","), nil
}

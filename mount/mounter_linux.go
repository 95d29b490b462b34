package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// mount is Mount.
func (m *Mounter) mount(ctx context.Context, plan Plan) error {
	var err error
	switch {
	case plan.Remount:
		err = m.changer.remount(ctx, &plan)
	case plan.Bind:
		err = m.changer.mountNew(ctx, &plan, m.changer.bind)
	case m.helpers.hasHelper(plan.FSType):
		err = m.changer.mountNew(ctx, &plan, m.helpers.byHelper)
	default:
		err = m.changer.mountNew(ctx, &plan, m.changer.filesystem)
	}
	if err != nil {
		return fmt.Errorf("mounting %s: %w", plan.describe(), err)
	}
	return nil
}

// mountNew makes a mount by how, and removes the directories that were made for it when that fails.
func (c changer) mountNew(ctx context.Context, plan *Plan,
	how func(context.Context, *entry, *Plan) error,
) error {
	p, err := c.reader.makeParent(ctx, plan.Target)
	if err != nil {
		return err
	}
	defer p.close()
	err = how(ctx, p, plan)
	if err == nil || errors.Is(err, ErrUncertain) {
		return err
	}
	return errors.Join(err, p.unmakeParents())
}

// describe names the mount for an error.
func (p *Plan) describe() string {
	switch {
	case p.Remount:
		return fmt.Sprintf("%q again", p.Target)
	case p.Bind:
		return fmt.Sprintf("%q at %q", p.Source, p.Target)
	default:
		return fmt.Sprintf("%s %s at %q", p.FSType, shown(p.scrub(p.Source)), p.Target)
	}
}

// attach mounts what attachTo puts on the target, and removes the target that was made when that fails.
func (p *entry) attach(ctx context.Context, dir bool, plan *Plan, attachTo func(*target) error) error {
	t, err := p.openTarget(ctx, dir)
	if err != nil {
		return err
	}
	defer t.close()
	if err := t.checkExclusive(ctx, plan); err != nil {
		return err
	}
	err = attachTo(t)
	if err == nil || errors.Is(err, ErrUncertain) {
		return err
	}
	return errors.Join(err, t.unmake())
}

// move puts a detached mount on the target.
func move(ctx context.Context, tree int, t *target, plan *Plan) error {
	if err := abandonable.Begin(ctx, "move_mount"); err != nil {
		return err
	}
	if err := t.take(tree); err != nil {
		return fmt.Errorf("move_mount: %w", explainLimit(t.mismatch(err)))
	}
	// A mount that is put below a shared one becomes shared, whatever it was.
	c := changer{t.reader}
	if err := c.setPropagation(ctx, tree, plan); err != nil {
		return t.undo(ctx, err)
	}
	c.reportMade(ctx, tree, plan.Target)
	return nil
}

// mismatch says by ENOTDIR, as mount(2) does, that the target is a directory and what is mounted is not, or the reverse.
func (t *target) mismatch(err error) error {
	if !errors.Is(err, unix.EINVAL) || t.fd < 0 { // What was made is what is needed.
		return err
	}
	mode, modeErr := modeOf(t.fd)
	if modeErr != nil || isDir(mode) == t.dir {
		return err
	}
	return fmt.Errorf("a directory can be mounted on a directory only, a file on a file: %w: %w", unix.ENOTDIR, err)
}

// setPropagation changes the propagation of the mount whose root fd is.
func (c changer) setPropagation(ctx context.Context, fd int, plan *Plan) error {
	if propagationFlags[plan.Propagation] == 0 {
		return nil
	}
	err := c.propagate(ctx, fd, plan)
	if errors.Is(err, errNoSyscall) {
		err = propagateOld(ctx, fd, plan)
		c.reader.hasChanged()
	}
	if err != nil {
		return fmt.Errorf("making the mount %s: %w", plan.Propagation, err)
	}
	return nil
}

func (c changer) propagate(ctx context.Context, fd int, plan *Plan) error {
	if c.reader.without.has(FeatureMountSetattr) {
		return errNoSyscall
	}
	var recursive uint
	if plan.recursivePropagation() {
		recursive = unix.AT_RECURSIVE
	}
	abandonable.Note(ctx, "mount_setattr")
	attr := unix.MountAttr{Propagation: propagationFlags[plan.Propagation]}
	return missing(unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|recursive, &attr))
}

// hasChanged lets the mount table be read again, after changes that the kernel does not tell of: of propagation by mount(2)
// and of a filesystem by fsconfig(2).
func (r *reader) hasChanged() {
	if last := r.cache.table.Load(); last != nil {
		last.close()
	}
}

// propagateOld is propagate by mount(2).
func propagateOld(ctx context.Context, fd int, plan *Plan) error {
	flags := uintptr(propagationFlags[plan.Propagation])
	if plan.recursivePropagation() {
		flags |= unix.MS_REC
	}
	abandonable.Note(ctx, "mount(propagation)")
	return unix.Mount("", fdPath(fd), "", flags, "")
}

// undo takes a mount off again that was just made and then could not be finished because of err.
func (p *entry) undo(ctx context.Context, err error) error {
	abandonable.Note(ctx, "umount2")
	if undoErr := unix.Unmount(p.name(), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); undoErr != nil {
		return fmt.Errorf("%w: the mount is there, since undoing it failed (%w): %w", ErrUncertain, undoErr, err)
	}
	return err
}

// remount changes the mount at the target.
func (c changer) remount(ctx context.Context, plan *Plan) error {
	p, err := c.reader.openParent(ctx, plan.Target)
	if err != nil {
		return err
	}
	defer p.close()
	mounted, err := p.mounted(ctx)
	if err != nil {
		return err
	}
	if !mounted {
		return fmt.Errorf("%q: %w", p.path, ErrNotMounted)
	}
	if err := abandonable.Begin(ctx, "openat2"); err != nil {
		return err
	}
	fd, err := p.open()
	if err != nil {
		return err
	}
	defer closeFD(fd)
	defer c.reader.hasChanged()
	if err := c.change(ctx, fd, plan); err != nil {
		return err
	}
	return inPart(c.setPropagation(ctx, fd, plan))
}

// inPart marks an error that came when a part of the work was done.
func inPart(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: a part is done: %w", ErrUncertain, err)
}

// change changes filesystem and mount at once where mount(2) is all there is, else the filesystem first, so that a mount
// whose filesystem refuses stays as it was.
func (c changer) change(ctx context.Context, fd int, plan *Plan) error {
	if !plan.Bind && plan.changesFilesystem() {
		err := c.reconfigure(ctx, fd, plan)
		if errors.Is(err, errNoSyscall) {
			return c.remountAllOld(ctx, fd, plan)
		}
		if err != nil {
			return err
		}
	}
	if !plan.changesMount() {
		return nil
	}
	err := c.changeMount(ctx, fd, plan)
	if plan.Bind {
		return err
	}
	return inPart(err)
}

// changeMount changes the options of one mount.
func (c changer) changeMount(ctx context.Context, fd int, plan *Plan) error {
	if err := abandonable.Begin(ctx, "mount_setattr"); err != nil {
		return err
	}
	var recursive uint
	if plan.Below {
		recursive = unix.AT_RECURSIVE
	}
	err := c.setattr(fd, plan.mountAttr(), recursive)
	if !errors.Is(err, errNoSyscall) {
		return err
	}
	if err := c.remountBindOld(ctx, fd, plan); err != nil {
		return err
	}
	if !plan.Below {
		return nil
	}
	return inPart(c.changeBelow(ctx, fd, plan))
}

// setattr changes the attributes of the mount whose root fd is, which need not be attached.
func (c changer) setattr(fd int, attr unix.MountAttr, flags uint) error {
	if c.reader.without.has(FeatureMountSetattr) {
		return errNoSyscall
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|flags, &attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", missing(err))
	}
	return nil
}

// remountBindOld is changeMount by mount(2), which sets all flags and so has to be told those that stay.
func (c changer) remountBindOld(ctx context.Context, fd int, plan *Plan) error {
	return c.remountFlags(ctx, fd, plan, unix.MS_BIND)
}

// remountAllOld is reconfigure and changeMount by mount(2).
func (c changer) remountAllOld(ctx context.Context, fd int, plan *Plan) error {
	err := c.remountFlags(ctx, fd, plan, 0)
	if err != nil || !plan.Below {
		return err
	}
	return inPart(c.changeBelow(ctx, fd, plan))
}

func (c changer) remountFlags(ctx context.Context, fd int, plan *Plan, flags uintptr) error {
	now, err := c.reader.mountOf(ctx, fd)
	if err != nil {
		return err
	}
	super, data, err := plan.oldData()
	if err != nil {
		return err
	}
	if err := abandonable.Begin(ctx, "mount(MS_REMOUNT)"); err != nil {
		return err
	}
	flags |= unix.MS_REMOUNT | plan.flags(now.Options) | super
	if err := unix.Mount("", fdPath(fd), "", flags, data); err != nil {
		return fmt.Errorf("mount(MS_REMOUNT): %w", err)
	}
	return nil
}

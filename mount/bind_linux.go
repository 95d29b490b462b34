package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// bind makes a bind. With the new system calls the mount is complete before it can be seen.
func (c changer) bind(ctx context.Context, p *entry, plan *Plan) error {
	tree, err := c.cloneTree(ctx, plan)
	if errors.Is(err, errNoSyscall) {
		if !plan.IDMappings.IsZero() {
			return noIDMappings(err)
		}
		return c.bindOld(ctx, p, plan)
	}
	if err != nil {
		return err
	}
	defer closeFD(tree)
	mode, err := modeOf(tree)
	if err != nil {
		return err
	}
	return p.attach(ctx, isDir(mode), plan, func(t *target) error {
		return move(ctx, tree, t, plan)
	})
}

func isDir(mode uint32) bool { return mode&unix.S_IFMT == unix.S_IFDIR }

// cloneTree makes a copy of the mount at the source that is not attached yet, and gives it its options.
func (c changer) cloneTree(ctx context.Context, plan *Plan) (int, error) {
	if c.reader.without.has(FeatureMountFD) {
		return -1, errNoSyscall
	}
	var recursive uint
	if plan.Recursive {
		recursive = unix.AT_RECURSIVE
	}
	if err := abandonable.Begin(ctx, "open_tree"); err != nil {
		return -1, err
	}
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | recursive
	tree, err := retryOpen(func() (int, error) { return unix.OpenTree(unix.AT_FDCWD, plan.Source, flags) })
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", explainLimit(missing(err)))
	}
	err = abandonable.Begin(ctx, "mount_setattr")
	if err == nil {
		err = c.setattr(tree, plan.detachedAttr(), recursive)
	}
	if err == nil {
		err = c.mapIDs(ctx, tree, plan, recursive)
	}
	if err != nil {
		closeFD(tree)
		return -1, err
	}
	return tree, nil
}

// bindOld makes a bind by mount(2), and gives it its options afterwards. A read-only bind is writable for an instant;
// when it cannot be made read-only, it is taken off again.
func (c changer) bindOld(ctx context.Context, p *entry, plan *Plan) error {
	if err := abandonable.Begin(ctx, "open"); err != nil {
		return err
	}
	source, err := retryOpen(func() (int, error) { return unix.Open(plan.Source, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer closeFD(source)
	mode, err := modeOf(source)
	if err != nil {
		return err
	}
	return p.attach(ctx, isDir(mode), plan, func(t *target) error {
		return c.bindTo(ctx, source, t, plan)
	})
}

func (c changer) bindTo(ctx context.Context, source int, t *target, plan *Plan) error {
	if err := abandonable.Begin(ctx, "mount(MS_BIND)"); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND)
	if plan.Recursive {
		flags |= unix.MS_REC
	}
	if err := t.open(); err != nil {
		return err
	}
	if err := unix.Mount(fdPath(source), fdPath(t.fd), "", flags, ""); err != nil {
		return fmt.Errorf("mount(MS_BIND): %w", explainLimit(err))
	}
	if err := c.finishOld(ctx, t, plan); err != nil {
		return t.undo(ctx, err)
	}
	return nil
}

// finishOld gives a mount that mount(2) has attached its propagation and its options.
func (c changer) finishOld(ctx context.Context, t *target, plan *Plan) error {
	fd, err := t.entry.open() // not what was there before
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := c.finishAt(ctx, fd, plan); err != nil {
		return err
	}
	c.reportMade(ctx, fd, plan.Target) // mount(2) returns no descriptor: a mount that covers it since is reported instead
	return nil
}

// finishAt is finishOld of the mount whose root fd is.
func (c changer) finishAt(ctx context.Context, fd int, plan *Plan) error {
	if err := c.setPropagation(ctx, fd, plan); err != nil {
		return err
	}
	if !plan.Bind || !plan.changesMount() {
		return nil
	}
	if err := c.remountBindOld(ctx, fd, plan); err != nil {
		return err
	}
	if plan.Below {
		return c.changeBelow(ctx, fd, plan)
	}
	return nil
}

// changeBelow gives the mounts below the one whose root fd is the options of the plan, by mount(2).
func (c changer) changeBelow(ctx context.Context, fd int, plan *Plan) error {
	top, err := c.reader.mountOf(ctx, fd)
	if err != nil {
		return err
	}
	table, err := c.reader.readTable(ctx)
	if err != nil {
		return err
	}
	for _, mp := range descendants(table, top.ID) {
		if err := c.changeOne(ctx, mp, plan); err != nil {
			return fmt.Errorf("at %q: %w", mp.Path, err)
		}
	}
	return nil
}

// descendants returns the mounts on the one with the id, those on them and so on.
func descendants(table []MountPoint, id uint64) (found []MountPoint) {
	known := map[uint64]bool{id: true}
	for grown := true; grown; {
		grown = false
		for _, mp := range table {
			if known[mp.ParentID] && !known[mp.ID] {
				known[mp.ID], grown = true, true
				found = append(found, mp)
			}
		}
	}
	return found
}

// changeOne changes a mount of the table, when it is that which its path leads to: what another mount hides cannot be
// reached, neither by us nor by another process.
func (c changer) changeOne(ctx context.Context, mp MountPoint, plan *Plan) error {
	fd, err := c.reader.openPath(unix.AT_FDCWD, mp.Path)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if id, err := mountID(fd); err != nil || id != mp.ID {
		return err
	}
	return c.remountBindOld(ctx, fd, plan)
}

package atomicwriter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// links makes every user-visible link that is missing, and puts right those that lead elsewhere. What is no link stays.
func (a *attempt) links() {
	for _, v := range a.want.visible() {
		changed, err := a.link(v)
		a.later(err)
		if changed {
			a.result.Linked = append(a.result.Linked, v.name)
		}
	}
}

// link makes one link right and reports whether anything was changed.
func (a *attempt) link(v visible) (changed bool, err error) {
	target, err := a.root.readLink(v.name)
	switch {
	case err == nil && target == v.target():
		return a.ownLink(v)
	case err == nil:
		if err := a.root.unlink(v.name); err != nil {
			return false, err
		}
	case errors.Is(err, unix.EINVAL):
		return false, a.root.failed("link", v.name, fmt.Errorf("what lies here is no link; move it away: %w", ErrForeign))
	case !errors.Is(err, unix.ENOENT):
		return false, err
	}
	if err := a.root.symlink(v.target(), v.name); err != nil {
		if errors.Is(err, unix.EEXIST) {
			err = fmt.Errorf("%w: %w", ErrConflict, err)
		}
		return false, err
	}
	_, err = a.ownLink(v)
	return true, err
}

// ownLink gives a link to its user and reports whether it had another.
func (a *attempt) ownLink(v visible) (changed bool, err error) {
	if v.owner == nil {
		return false, nil
	}
	return a.root.ownLink(v.name, *v.owner)
}

// ownLink gives a symbolic link to a user, unless it has it already. The link is held open: what a workload puts in its
// place, a hard link to a file of another user, is not given away.
func (d dir) ownLink(name string, owner int64) (changed bool, err error) {
	fd, err := d.open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return false, d.failed("open", name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return false, d.failed("stat", name, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFLNK:
		return false, d.failed("chown", name, fmt.Errorf("no link any more: %w", ErrConflict))
	case int64(st.Uid) == owner:
		return false, nil
	}
	err = d.change("chown", name, func() error { return unix.Fchownat(fd, "", int(owner), -1, unix.AT_EMPTY_PATH) })
	return err == nil, err
}

// prune removes the links that some Write has made for names that the payload no longer has. They are known by where they
// lead to, so that it does not matter which Write was interrupted.
func (a *attempt) prune() {
	wanted := make(map[string]bool)
	for _, v := range a.want.visible() {
		wanted[v.name] = true
	}
	var unwanted []string
	a.later(a.root.each(func(name string) error {
		if wanted[name] || strings.HasPrefix(name, ownPrefix) {
			return nil
		}
		if target, err := a.root.readLink(name); err != nil || target != linkTarget(name) {
			return nil //nolint:nilerr // What is no link, or cannot be read, is not ours.
		}
		unwanted = append(unwanted, name)
		return nil
	}))
	slices.Sort(unwanted)
	for _, name := range unwanted {
		if err := ignoreGone(a.root.unlink(name)); err != nil {
			a.later(err)
			continue
		}
		a.result.Pruned = append(a.result.Pruned, name)
	}
}

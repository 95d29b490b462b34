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
	st, err := a.root.stat(v.name)
	if err != nil || int64(st.Uid) == *v.owner {
		return false, err
	}
	return true, a.root.lchown(v.name, int(*v.owner))
}

// prune removes the links that some Write has made for names that the payload no longer has. They are known by where they
// lead to, so that it does not matter which Write was interrupted.
func (a *attempt) prune() {
	wanted := make(map[string]bool)
	for _, v := range a.want.visible() {
		wanted[v.name] = true
	}
	a.later(a.root.each(func(name string) error {
		if wanted[name] || strings.HasPrefix(name, ownPrefix) {
			return nil
		}
		if target, err := a.root.readLink(name); err != nil || target != linkTarget(name) {
			return nil //nolint:nilerr // What is no link, or cannot be read, is not ours.
		}
		a.result.Pruned = append(a.result.Pruned, name)
		return nil
	}))
	slices.Sort(a.result.Pruned)
	for _, name := range a.result.Pruned {
		a.later(ignoreGone(a.root.unlink(name)))
	}
}

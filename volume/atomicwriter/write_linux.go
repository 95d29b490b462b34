package atomicwriter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// attempt is one Write.
type attempt struct {
	w      *AtomicWriter
	root   dir
	want   set
	result Result
	before string  // where dataLink led to at first, whatever that was; empty for no link
	late   []error // of what is no reason not to publish
}

func (w *AtomicWriter) write(ctx context.Context, want set) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	root, err := w.openRoot()
	if err != nil {
		return Result{}, err
	}
	defer root.close()
	a := &attempt{w: w, root: root, want: want}
	err = a.run(ctx)
	return a.result, err
}

func (a *attempt) run(ctx context.Context) error {
	current, err := a.current()
	if err != nil {
		return err
	}
	a.result.Dir = current
	if err := a.sweep(ctx, current); err != nil {
		return err
	}
	l, err := a.look(ctx, current)
	if err != nil {
		return err
	}
	if current == "" || !l.same() || !hasDigest(current, a.want.digest()) {
		l.report(&a.result)
		if err := a.replace(ctx); err != nil {
			return errors.Join(append(a.late, err)...)
		}
		if current != "" {
			a.later(a.removeSet(ctx, current, replaced))
		}
	}
	a.links()
	a.prune()
	return a.finish()
}

// later keeps an error for the end.
func (a *attempt) later(err error) {
	if err != nil {
		a.late = append(a.late, err)
	}
}

// finish makes the links last and looks whether the set is still the one that is published.
func (a *attempt) finish() error {
	if a.w.options.Sync && len(a.result.Linked)+len(a.result.Pruned) > 0 {
		a.later(a.root.sync())
	}
	if target, err := a.root.readLink(dataLink); err != nil || target != a.result.Dir {
		a.later(a.root.failed("publish", dataLink, errors.Join(ErrConflict, err)))
	}
	return uncertain(errors.Join(a.late...))
}

// current returns the name of the set that is published, empty when there is none, and makes sure that a link can be put
// at dataLink.
func (a *attempt) current() (string, error) {
	target, err := a.root.readLink(dataLink)
	switch {
	case errors.Is(err, unix.ENOENT):
		return "", nil
	case errors.Is(err, unix.EINVAL): // no link: planted
		return "", a.root.clear(dataLink)
	case err != nil:
		return "", err
	}
	a.before = target
	if !isSetName(target) {
		return "", nil // leads elsewhere: planted
	}
	d, err := a.root.openDir(target)
	switch {
	case err == nil:
		d.close()
		return target, nil
	case noDirectory(err), errors.Is(err, unix.ENOENT), errors.Is(err, ErrForeign):
		return "", nil
	}
	return "", err
}

func noDirectory(err error) bool { return errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) }

// look compares the published set with the wanted one. With none published, all that is wanted is new.
func (a *attempt) look(ctx context.Context, current string) (*look, error) {
	if current == "" {
		return &look{want: a.want}, nil
	}
	d, err := a.root.openDir(current)
	if err != nil {
		return nil, gone(err)
	}
	defer d.close()
	return lookAt(ctx, d, a.want)
}

// sweep removes what earlier Writes have left, before anything is written, so that there is room. What cannot be removed
// is no reason not to publish.
func (a *attempt) sweep(ctx context.Context, current string) error {
	var leftovers []string
	err := a.root.each(func(name string) error {
		if name == newDataLink || isSetName(name) && name != current {
			leftovers = append(leftovers, name)
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	slices.Sort(leftovers)
	for _, name := range leftovers {
		if name == newDataLink {
			if err := a.root.clear(name); err != nil {
				return err // it is in the way
			}
			a.result.Cleared = append(a.result.Cleared, name)
			continue
		}
		switch err := a.removeSet(ctx, name, abandoned); {
		case err == nil:
			a.result.Cleared = append(a.result.Cleared, name)
		case ctx.Err() != nil:
			return err
		case !errors.Is(err, errInUse):
			a.later(fmt.Errorf("leftover of an earlier Write: %w", err))
		}
	}
	return nil
}

// kind says what is known of a set that is to be removed.
type kind int

const (
	abandoned kind = iota // it seems: another process may be writing it
	replaced              // complete, and replaced by us
)

// errInUse says that another writer holds the lock of a set, or has published it.
var errInUse = fmt.Errorf("another writer uses it: %w", ErrConflict)

// removeSet removes the directory of a set, or what was planted at its name. One that another Write is at work on, or
// that is published, stays: that is errInUse.
func (a *attempt) removeSet(ctx context.Context, name string, k kind) error {
	err := a.root.unlink(name)
	if !errors.Is(err, unix.EISDIR) {
		return ignoreGone(err)
	}
	d, err := a.root.openDir(name)
	if err != nil {
		return ignoreGone(err)
	}
	defer d.close()
	if k == abandoned && d.locked() {
		return a.root.failed("remove", name, errInUse)
	}
	// While the lock is held, no other writer can publish it.
	target, err := a.root.readLink(dataLink)
	switch {
	case err == nil && target == name:
		return a.root.failed("remove", name, errInUse)
	case err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL):
		return err
	}
	return ignoreGone(a.root.removeTree(ctx, name, d))
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// locked locks the directory of a set, and reports whether another process has the lock. The lock ends with the descriptor.
// On a filesystem that has no locks on directories, nothing protects against two Writes at once.
func (d dir) locked() bool {
	return errors.Is(retry(func() error {
		if err := unix.Flock(d.fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			return errInUse
		}
		return nil
	}), errInUse)
}

// replace writes the wanted set and publishes it. When it fails it removes what it has made.
func (a *attempt) replace(ctx context.Context) (err error) {
	d, err := a.newDir()
	if err != nil {
		return err
	}
	defer d.close()
	defer func() { // also when SetPerms panics
		if !a.result.Published {
			err = a.undo(ctx, d, err)
		}
	}()
	if err := a.prepare(ctx, d); err != nil {
		return err
	}
	return a.publish(d)
}

// newDir makes, opens and locks the directory of a new set.
func (a *attempt) newDir() (d dir, err error) {
	for range maxTries {
		name := newSetName(time.Now(), a.want.digest())
		if err = a.root.mkdir(name); err == nil {
			return a.openNew(name)
		}
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return dir{}, err
}

func (a *attempt) openNew(name string) (dir, error) {
	d, err := a.root.openDir(name)
	if err != nil {
		return dir{}, errors.Join(gone(err), ignoreGone(a.root.rmdir(name)))
	}
	if d.locked() {
		d.close()
		return dir{}, fmt.Errorf("another writer removes the new set %q: %w", d.path, ErrConflict)
	}
	return d, nil
}

// prepare makes a set complete.
func (a *attempt) prepare(ctx context.Context, d dir) error {
	if err := d.setDirMode(); err != nil {
		return err
	}
	if err := d.fill(ctx, a.want); err != nil {
		return err
	}
	if err := a.setPerms(ctx, d); err != nil {
		return err
	}
	if !a.w.options.Sync {
		return ctx.Err()
	}
	return d.syncSet(ctx, a.want)
}

func (a *attempt) setPerms(ctx context.Context, d dir) error {
	if a.w.options.SetPerms == nil {
		return nil
	}
	again, err := d.again()
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(again.fd), d.path)
	defer file.Close()
	if err := a.w.options.SetPerms(ctx, file); err != nil {
		return fmt.Errorf("setting the permissions of the new set %q: %w", d.path, err)
	}
	return nil
}

// publish makes dataLink lead to the set in d.
func (a *attempt) publish(d dir) error {
	name := filepath.Base(d.path)
	if err := a.inPlace(d, name); err != nil {
		return err
	}
	if now, err := a.root.readLink(dataLink); now != a.before {
		return a.root.failed("publish", dataLink, errors.Join(ErrConflict, err))
	}
	switch err := a.root.symlink(name, newDataLink); {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case err != nil:
		return err
	}
	if err := a.root.rename(newDataLink, dataLink); err != nil {
		return errors.Join(whyNotRenamed(err), a.removeNewLink(name))
	}
	// Another writer may have put its link in the place of ours. Only if that is seen are we not the one who published.
	if target, err := a.root.readLink(dataLink); err == nil && target != name {
		return a.root.failed("publish", dataLink, ErrConflict)
	}
	a.result.Published, a.result.Dir = true, name
	if a.w.options.Sync {
		a.later(a.root.sync())
	}
	return nil
}

// inPlace makes sure that name is still the directory that was filled.
func (a *attempt) inPlace(d dir, name string) error {
	var is unix.Stat_t
	if err := retry(func() error { return unix.Fstat(d.fd, &is) }); err != nil {
		return d.failed("stat", "", err)
	}
	st, err := a.root.stat(name)
	if err != nil {
		return gone(err)
	}
	if st.Ino != is.Ino || unix.Mkdev(st.Dev_major, st.Dev_minor) != is.Dev {
		return a.root.failed("publish", name, ErrConflict)
	}
	return nil
}

func whyNotRenamed(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return err
}

// removeNewLink removes the link to a set that was not published.
func (a *attempt) removeNewLink(name string) error {
	if target, err := a.root.readLink(newDataLink); err != nil || target != name {
		return nil //nolint:nilerr // It is not ours.
	}
	return uncertain(ignoreGone(a.root.unlink(newDataLink)))
}

// undoTime bounds how long a set is removed after ctx has ended, for a workload may go on writing to it.
const undoTime = 10 * time.Second

// undo removes a set that was not published because of err.
func (a *attempt) undo(ctx context.Context, d dir, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	left := ignoreGone(a.root.removeTree(ctx, filepath.Base(d.path), d))
	if left == nil {
		return err
	}
	return uncertain(errors.Join(err, fmt.Errorf("removing the new set again: %w", left)))
}

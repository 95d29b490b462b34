package atomicwriter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxPasses is how often a directory is read again because a workload still writes to it.
	maxPasses = 16
	// maxDepth is how deep a directory is emptied where it is.
	maxDepth = 16
	// maxHoists bounds how deep a tree that another process has made may be.
	maxHoists = 1 << 20
)

// clear makes way at a name that only the writer uses: whatever is no directory goes, and so does an empty directory.
// What remains is an error that matches ErrForeign.
func (d dir) clear(name string) error {
	err := d.unlink(name)
	if errors.Is(err, unix.EISDIR) {
		err = d.rmdir(name)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY):
		return d.failed("clear", name, fmt.Errorf("a directory with something in it lies here; move it away: %w", ErrForeign))
	}
	return err
}

// removeTree removes the directory name, which is open as top, with all that is in it. Nothing that is mounted in it is
// entered or taken off: that is an error that matches ErrForeign.
func (d dir) removeTree(ctx context.Context, name string, top dir) error {
	r := &remover{top: top}
	if err := r.empty(ctx, top, 0); err != nil {
		return err
	}
	return d.rmdir(name)
}

// remover empties one directory. However deep the tree is, it holds few directories open: what lies too deep is moved up.
type remover struct {
	top    dir
	hoists int
}

// empty reads and removes what is in d, which is depth directories below the top, until nothing is left.
func (r *remover) empty(ctx context.Context, d dir, depth int) error {
	d.makeWritable()
	for tries := 0; tries < maxPasses; {
		hoists := r.hoists
		entries, err := r.pass(ctx, d, depth)
		if err != nil || entries == 0 {
			return err
		}
		if r.hoists == hoists || r.hoists > maxHoists {
			tries++
		}
	}
	return d.failed("empty", "", fmt.Errorf("files still appear in it: %w", ErrConflict))
}

// pass removes each entry once and returns how many there were. It goes on after a failure and returns the first.
func (r *remover) pass(ctx context.Context, d dir, depth int) (entries int, err error) {
	var first error
	err = d.each(func(name string) error {
		entries++
		if err := r.entry(ctx, d, name, depth); err != nil && first == nil {
			first = err
		}
		return ctx.Err()
	})
	return entries, errors.Join(err, first)
}

func (r *remover) entry(ctx context.Context, d dir, name string, depth int) error {
	if removed, err := d.remove(name); removed || err != nil {
		return err
	}
	if depth >= maxDepth {
		return r.hoist(d, name)
	}
	sub, err := d.openDir(name)
	if depth > 0 && (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) {
		return r.hoist(d, name)
	}
	if err != nil {
		return err
	}
	defer sub.close()
	if err := r.empty(ctx, sub, depth+1); err != nil {
		return err
	}
	_, err = d.remove(name)
	return err
}

// hoist moves a directory that is too deep into the top, where the next pass finds it.
func (r *remover) hoist(from dir, name string) error {
	if d, err := from.openDir(name); err == nil {
		d.makeWritable() // to move a directory is to write to it
		d.close()
	}
	for range maxTries {
		free := ".removed-" + strconv.FormatUint(rand.Uint64(), 36)
		err := from.change("rename", name, func() error {
			return mountedIfBusy(unix.Renameat2(from.fd, name, r.top.fd, free, unix.RENAME_NOREPLACE))
		})
		if !errors.Is(err, unix.EEXIST) {
			r.hoists++
			return err
		}
	}
	return from.failed("rename", name, unix.EEXIST)
}

// remove removes an entry, unless it is a directory with something in it: then removed is false. What is gone already is
// removed.
func (d dir) remove(name string) (removed bool, err error) {
	err = d.unlink(name)
	if errors.Is(err, unix.EISDIR) {
		err = d.rmdir(name)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY):
		return false, nil
	}
	return false, err
}

// makeWritable lets an ordinary user empty a directory of its own that SetPerms has closed. Where that fails, emptying
// says why.
func (d dir) makeWritable() {
	var st unix.Stat_t
	if unix.Fstat(d.fd, &st) == nil && st.Mode&0o300 != 0o300 {
		_ = d.change("chmod", "", func() error { return unix.Fchmod(d.fd, 0o700) })
	}
}

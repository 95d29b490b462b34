package safepath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

const (
	// maxOpen is how many directories of a tree that is removed are open at once.
	maxOpen = 32
	// maxPasses is how often a directory is read again because it was not empty after all.
	maxPasses = 64
	// batch is how many names are read at once.
	batch = 512
)

// remove is Remove.
func (t *tree) remove(ctx context.Context, name string) error {
	dir, base := splitName(name)
	at, err := t.openPath(ctx, t.fd, dir, how{directory: true, oneMount: true})
	if err != nil {
		return err
	}
	defer closeFD(at)
	return t.unlink(ctx, at, base)
}

// unlink removes one name, of whatever kind. The kernel refuses a mount point, and a directory that is not empty.
func (t *tree) unlink(ctx context.Context, at int, base string) error {
	if err := abandonable.Begin(ctx, "unlinkat"); err != nil {
		return err
	}
	err := unlinkat(at, base, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	dirErr := unlinkat(at, base, unix.AT_REMOVEDIR)
	if errors.Is(dirErr, unix.ENOTDIR) {
		return err
	}
	return dirErr
}

func unlinkat(at int, base string, flags int) error {
	_, err := retry(func() (int, error) { return 0, unix.Unlinkat(at, base, flags) })
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w, or the kernel uses it: %w", ErrMounted, err)
	case errors.Is(err, unix.EEXIST):
		return unix.ENOTEMPTY // the other name that rmdir(2) has for it
	}
	return err
}

// removeAll is RemoveAll.
func (t *tree) removeAll(ctx context.Context, name string, table mount.Interface) error {
	dir, base := splitName(name)
	at, err := t.openPath(ctx, t.fd, dir, how{directory: true, oneMount: true})
	if err != nil {
		return ignoreGone(err)
	}
	defer closeFD(at)
	for range maxPasses {
		// Mostly there is nothing in it; and afterwards this tells whether the name is free.
		err = t.unlink(ctx, at, base)
		if errors.Is(err, unix.EISDIR) {
			continue // it was a directory and has become something else
		}
		if !errors.Is(err, unix.ENOTEMPTY) {
			return ignoreGone(err)
		}
		if err := t.checkNoMounts(ctx, at, base, table); err != nil {
			return err
		}
		r := &remover{tree: t, at: at}
		err = r.run(ctx, base)
		r.close()
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("after %d passes: %w: %w", maxPasses, ErrRaced, err)
}

// removeContent is RemoveContent.
func (t *tree) removeContent(ctx context.Context, table mount.Interface) error {
	// All of it is looked at before the first name goes: else what lies beside a mount would be gone before that is met.
	if err := t.checkNoMounts(ctx, t.fd, "", table); err != nil {
		return err
	}
	names, err := namesIn(t.fd)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if err := t.removeAll(ctx, name, table); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// checkNoMounts refuses a tree in which something is mounted. An empty base is what is in at, which may itself be a mount. A small
// tree is looked at itself, which costs nothing for the other mounts of the node; of a larger one the mount table tells.
func (t *tree) checkNoMounts(ctx context.Context, at int, base string, table mount.Interface) error {
	l, err := t.newMountSearch(at)
	if err == nil {
		err = l.searchDir(ctx, base)
	}
	if err == nil || errors.Is(err, ErrMounted) {
		return err
	}
	return checkNoneListed(ctx, at, base, table)
}

// checkNoneListed refuses a tree in which the mount table shows a mount.
func checkNoneListed(ctx context.Context, at int, base string, table mount.Interface) error {
	above, err := os.Readlink(fdPath(at))
	if err != nil {
		return err
	}
	mounts, err := table.List(ctx)
	if err != nil {
		return err
	}
	top := path.Join(above, base)
	var inside []string
	for _, m := range mounts {
		if base != "" && m.Path == top || strings.HasPrefix(m.Path, strings.TrimSuffix(top, "/")+"/") && m.Path != top {
			inside = append(inside, strings.TrimPrefix(m.Path, strings.TrimSuffix(above, "/")+"/"))
		}
	}
	if len(inside) > 0 {
		return fmt.Errorf("nothing was removed, since there are %d mounts inside, the first at %q: unmount first: %w",
			len(inside), inside[0], ErrMounted)
	}
	return nil
}

// remover removes one tree. It goes down and up without recursion, and has only the lowest of the directories that it is
// in open. Those above are opened again by "..", and must then be the same.
type remover struct {
	tree   *tree
	at     int // where the tree is
	levels []level
}

// level is a directory that is being emptied.
type level struct {
	name  string   // in the level above
	id    fileID   //
	dir   *os.File // nil when it was closed to save descriptors
	names []string // that were read and are still to be removed
	seen  int      // names since the reading began at the start
	pass  int      // how often it has begun
}

// fd is the descriptor of the level.
func (l *level) fd() int { return int(l.dir.Fd()) }

func (r *remover) close() {
	for _, l := range r.levels {
		closeFile(l.dir)
	}
}

// run removes the directory base in r.at.
func (r *remover) run(ctx context.Context, base string) error {
	if err := r.enter(ctx, r.at, base); err != nil {
		return err
	}
	for len(r.levels) > 0 {
		if err := r.proceed(ctx); err != nil {
			return fmt.Errorf("at %q: %w", r.where(), err)
		}
	}
	return nil
}

// where is the name of the lowest level, shortened in the middle where it is very long.
func (r *remover) where() string {
	const ends = 8
	var names []string
	for i, l := range r.levels {
		switch {
		case i < ends || i >= len(r.levels)-ends:
			names = append(names, l.name)
		case i == ends:
			names = append(names, "...")
		}
	}
	return strings.Join(names, "/")
}

// proceed removes one name of the lowest level, goes down into it, or goes up when nothing is left.
func (r *remover) proceed(ctx context.Context) error {
	low := &r.levels[len(r.levels)-1]
	name, err := low.next()
	// Of a directory that another process has removed there is nothing to be read (ENOENT).
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
		return r.leave(ctx)
	}
	if err != nil {
		return err
	}
	err = r.tree.unlink(ctx, low.fd(), name)
	switch {
	case errors.Is(err, unix.ENOTEMPTY):
		return r.enter(ctx, low.fd(), name)
	case errors.Is(err, unix.EISDIR), ignoreGone(err) == nil:
		return nil // gone, or changed meanwhile: then the next pass finds it
	}
	return fmt.Errorf("%q: %w", name, err)
}

// next returns a name that is still to be removed, and io.EOF when all have been returned.
func (l *level) next() (string, error) {
	if len(l.names) == 0 {
		names, err := l.dir.Readdirnames(batch)
		if len(names) == 0 {
			return "", err
		}
		l.names, l.seen = names, l.seen+len(names)
	}
	name := l.names[0]
	l.names = l.names[1:]
	return name, nil
}

// enter goes down into the directory name.
func (r *remover) enter(ctx context.Context, at int, name string) error {
	dir, err := r.tree.openDir(ctx, at, name)
	if errors.Is(err, unix.ELOOP) {
		return nil // a link by now: the next pass finds it
	}
	if err != nil {
		return ignoreGone(fmt.Errorf("%q: %w", name, err))
	}
	l := level{name: name, dir: os.NewFile(uintptr(dir), name)}
	now, err := look(dir, "")
	if err != nil {
		closeFile(l.dir)
		return fmt.Errorf("%q: %w", name, err)
	}
	l.id = now.id
	r.levels = append(r.levels, l)
	if high := len(r.levels) - 1 - maxOpen; high >= 0 {
		r.levels[high].shut()
	}
	return nil
}

// shut closes the level's directory. What was read of it is read again.
func (l *level) shut() {
	closeFile(l.dir)
	l.dir, l.names, l.seen = nil, nil, 0
}

// openDir opens a directory for reading that is on the same mount.
func (t *tree) openDir(ctx context.Context, at int, name string) (int, error) {
	if err := abandonable.Begin(ctx, "openat2"); err != nil {
		return -1, err
	}
	h := how{directory: true, oneMount: true}
	fd, err := t.openat2(at, name, unix.O_RDONLY, h)
	if !errors.Is(err, errNoSyscall) {
		return fd, h.explain(err)
	}
	path, err := t.openPath(ctx, at, name, h)
	if err != nil {
		return -1, err
	}
	defer closeFD(path)
	return t.reopen(ctx, path)
}

// leave removes the lowest level, which was read to its end, and goes up.
func (r *remover) leave(ctx context.Context) error {
	low := &r.levels[len(r.levels)-1]
	above, err := r.above()
	if err != nil {
		return err
	}
	if err := abandonable.Begin(ctx, "rmdir"); err != nil {
		return err
	}
	err = unlinkat(above, low.name, unix.AT_REMOVEDIR)
	isTop := len(r.levels) == 1
	if errors.Is(err, unix.ENOTEMPTY) && (low.seen > 0 || isTop) {
		return low.again()
	}
	// When it is still there and was empty, another has taken its name, which the next pass over the level above finds.
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && ignoreGone(err) != nil {
		return err
	}
	closeFile(low.dir)
	r.levels = r.levels[:len(r.levels)-1]
	return nil
}

// above returns the descriptor of the level above the lowest, opened again if it was closed.
func (r *remover) above() (int, error) {
	n := len(r.levels)
	if n == 1 {
		return r.at, nil
	}
	low, high := &r.levels[n-1], &r.levels[n-2]
	if high.dir != nil {
		return high.fd(), nil
	}
	fd, err := openat(low.fd(), "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	defer closeFD(fd)
	now, err := look(fd, "")
	if err != nil {
		return -1, err
	}
	if now.id != high.id {
		return -1, fmt.Errorf("it was moved elsewhere while it was emptied: %w", ErrRaced)
	}
	// ".." leads into what is mounted over the level above, and that may be a bind of the same directory.
	if err := r.tree.sameMount(low.fd(), fd); err != nil {
		return -1, how{oneMount: true}.explain(err)
	}
	dir, err := openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	high.dir = os.NewFile(uintptr(dir), high.name)
	return dir, nil
}

// again begins to read from the start.
func (l *level) again() error {
	if l.pass++; l.pass >= maxPasses {
		return fmt.Errorf("it is not empty after %d passes: %w", maxPasses, ErrRaced)
	}
	l.names, l.seen = nil, 0
	_, err := l.dir.Seek(0, io.SeekStart)
	return err
}

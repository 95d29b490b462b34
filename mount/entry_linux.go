package mount

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// entry is a name in an open directory. A rename of a directory above does not change the file that it names.
type entry struct {
	reader *reader
	parent int // descriptor
	base   string
	path   string
	made   []madeDir // parents that this entry made, the uppermost first
}

// madeDir is a directory that was made: a name in an open directory.
type madeDir struct {
	at   int
	base string
}

// openParent opens the directory that holds name.
func (r *reader) openParent(ctx context.Context, name string) (*entry, error) {
	p, err := r.entryOf(name)
	if err != nil {
		return nil, err
	}
	if err := abandonable.Begin(ctx, "openat2"); err != nil {
		return nil, err
	}
	p.parent, err = r.openPath(unix.AT_FDCWD, path.Dir(name))
	if err != nil {
		return nil, parentError(name, err)
	}
	return p, nil
}

// makeParent is openParent, but makes the directory and its parents if they are missing.
func (r *reader) makeParent(ctx context.Context, name string) (*entry, error) {
	p, err := r.entryOf(name)
	if err != nil {
		return nil, err
	}
	if err := p.makeParent(ctx); err != nil {
		err = errors.Join(err, p.unmakeParents())
		p.close()
		return nil, err
	}
	return p, nil
}

func (r *reader) entryOf(name string) (*entry, error) {
	if name == "/" {
		return nil, fmt.Errorf("the root directory has no parent: %w", ErrInvalid)
	}
	return &entry{reader: r, parent: -1, base: path.Base(name), path: name}, nil
}

func parentError(name string, err error) error {
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("a parent of %q is a symbolic link; give the path that it leads to: %w", name, err)
	}
	return fmt.Errorf("opening the parent of %q: %w", name, err)
}

// makeParent opens the directory that holds the name again, and makes what is missing of it. A concurrent Mount that fails
// removes the directories that it has made; makeParent makes them again.
func (p *entry) makeParent(ctx context.Context) (err error) {
	if p.parent >= 0 {
		closeFD(p.parent)
	}
	for range maxTries {
		p.parent, err = p.makeDir(ctx, path.Dir(p.path))
		if !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return parentError(p.path, err)
	}
	return nil
}

// makeDir opens the directory name. It makes the directory and its parents if they are missing, and follows no link.
func (p *entry) makeDir(ctx context.Context, name string) (int, error) {
	if err := abandonable.Begin(ctx, "openat2"); err != nil {
		return -1, err
	}
	fd, err := p.reader.openPath(unix.AT_FDCWD, name)
	if !errors.Is(err, unix.ENOENT) || name == "/" {
		return fd, err
	}
	above, err := p.makeDir(ctx, path.Dir(name))
	if err != nil {
		return -1, err
	}
	base := path.Base(name)
	abandonable.Note(ctx, "mkdirat")
	switch err := unix.Mkdirat(above, base, dirMode); {
	case err == nil:
		p.made = append(p.made, madeDir{above, base}) // close closes it
	case errors.Is(err, unix.EEXIST):
		defer closeFD(above)
	default:
		closeFD(above)
		return -1, fmt.Errorf("making %q: %w", name, err)
	}
	return p.reader.openPath(above, base)
}

// isNew reports whether this entry made the directory that holds the name.
func (p *entry) isNew() bool { return len(p.made) > 0 }

// unmakeParents removes the directories that this entry made. One that another process uses by now stays.
func (p *entry) unmakeParents() error {
	for _, dir := range slices.Backward(p.made) {
		switch err := unix.Unlinkat(dir.at, dir.base, unix.AT_REMOVEDIR); {
		case err == nil, errors.Is(err, unix.ENOENT):
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EBUSY):
			return nil
		default:
			return fmt.Errorf("removing the directory %q that was made: %w", dir.base, err)
		}
	}
	return nil
}

func (p *entry) close() {
	if p.parent >= 0 {
		closeFD(p.parent)
	}
	for _, dir := range p.made {
		closeFD(dir.at)
	}
}

// name is a path of the entry for system calls that take only paths. The call must not follow its last element.
func (p *entry) name() string { return fdPath(p.parent) + "/" + p.base }

// open opens the file: the root of the uppermost mount if something is mounted there. The mount is busy as long as the
// descriptor is open.
func (p *entry) open() (int, error) {
	fd, err := p.reader.openPath(p.parent, p.base)
	if errors.Is(err, unix.ELOOP) {
		return -1, fmt.Errorf("%q is a symbolic link: %w", p.path, err)
	}
	return fd, err
}

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

// place is a name in an open directory, so that renaming the directories above does not change what it names.
type place struct {
	reader *reader
	parent int
	base   string
	path   string
	made   []madeDir // above the name, by us, the uppermost first
}

// madeDir is a directory that was made, as a name in an open directory.
type madeDir struct {
	at   int
	base string
}

// openPlace opens the directory that holds name.
func (r *reader) openPlace(ctx context.Context, name string) (*place, error) {
	p, err := r.placeOf(name)
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

// makePlace is openPlace that makes the directory, and those above it, where there is none.
func (r *reader) makePlace(ctx context.Context, name string) (*place, error) {
	p, err := r.placeOf(name)
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

func (r *reader) placeOf(name string) (*place, error) {
	if name == "/" {
		return nil, fmt.Errorf("the root directory has no parent: %w", ErrInvalid)
	}
	return &place{reader: r, parent: -1, base: path.Base(name), path: name}, nil
}

func parentError(name string, err error) error {
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("a parent of %q is a symbolic link; give the path that it leads to: %w", name, err)
	}
	return fmt.Errorf("opening the parent of %q: %w", name, err)
}

// makeParent opens the directory that holds the name, in place of one that is open, and makes what is missing of it. A
// directory that another Mount has made may go while this one is in it, because that other has failed: then it is made
// again.
func (p *place) makeParent(ctx context.Context) (err error) {
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

// makeDir opens the directory name, and makes it and those above it beneath the lowest that is there. Like every walk it
// follows no link.
func (p *place) makeDir(ctx context.Context, name string) (int, error) {
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
		p.made = append(p.made, madeDir{above, base}) // which keeps it open
	case errors.Is(err, unix.EEXIST):
		defer closeFD(above)
	default:
		closeFD(above)
		return -1, fmt.Errorf("making %q: %w", name, err)
	}
	return p.reader.openPath(above, base)
}

// isNew reports whether the directory that holds the name was just made, so that most likely nothing is in it.
func (p *place) isNew() bool { return len(p.made) > 0 }

// unmakeParents removes the directories that were made. One that another process uses by now stays.
func (p *place) unmakeParents() error {
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

func (p *place) close() {
	if p.parent >= 0 {
		closeFD(p.parent)
	}
	for _, dir := range p.made {
		closeFD(dir.at)
	}
}

// name is the place for calls that take only paths. Its last element must not be followed by the call.
func (p *place) name() string { return fdPath(p.parent) + "/" + p.base }

// open opens what is at the place: the root of the uppermost mount when something is mounted there. As long as the
// descriptor is open, that mount is busy.
func (p *place) open() (int, error) {
	fd, err := p.reader.openPath(p.parent, p.base)
	if errors.Is(err, unix.ELOOP) {
		return -1, fmt.Errorf("%q is a symbolic link: %w", p.path, err)
	}
	return fd, err
}

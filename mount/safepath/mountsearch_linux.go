package safepath

import (
	"context"
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// maxSearched limits the names of a tree that are checked one by one. To remove more takes longer than to read a table of some
// thousand mounts.
const maxSearched = 4096

// errNotSearched: a search for mounts did not reach the end of the tree.
var errNotSearched = errors.New("the tree was not searched to the end")

// mountSearch searches a small tree for mounts.
type mountSearch struct {
	tree  *tree
	at    int
	mount uint64 // that at is in
	left  int    // names that may still be checked
}

// newMountSearch returns a search beneath at. It fails on a kernel without ids of mounts.
func (t *tree) newMountSearch(at int) (*mountSearch, error) {
	own, err := look(at, "")
	if err == nil && (own.mount == 0 || t.without&mount.FeatureStatxMountRoot != 0) {
		err = errNotSearched
	}
	return &mountSearch{tree: t, at: at, mount: own.mount, left: maxSearched}, err
}

// searchDir checks name beneath at, and everything in it. An empty name stands for the content of at. A mount is an error that
// matches ErrMounted. After any other error the tree was not searched to the end.
func (l *mountSearch) searchDir(ctx context.Context, name string) error {
	todo := []string{name}
	for len(todo) > 0 {
		name, todo = todo[len(todo)-1], todo[:len(todo)-1]
		if err := abandonable.Begin(ctx, "statx"); err != nil {
			return err
		}
		isDirectory, err := l.searchEntry(name)
		if err != nil {
			return err
		}
		if !isDirectory {
			continue
		}
		names, err := l.namesIn(ctx, name)
		if err != nil {
			return err
		}
		for _, base := range names {
			todo = append(todo, path.Join(name, base))
		}
	}
	return nil
}

// searchEntry checks one name, and reports whether it is a directory. A missing one is not.
func (l *mountSearch) searchEntry(name string) (isDirectory bool, err error) {
	now, err := look(l.at, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, err
	case now.mount != l.mount:
		return false, fmt.Errorf("nothing was removed, since something is mounted at %q in it: unmount it first: %w", name, ErrMounted)
	}
	return now.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// namesIn returns the names in the directory at name. More than maxSearched in all are an error.
func (l *mountSearch) namesIn(ctx context.Context, name string) ([]string, error) {
	fd, err := l.tree.openPath(ctx, l.at, path.Join(".", name), how{directory: true, oneMount: true})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	names, err := namesIn(fd)
	if err != nil {
		return nil, err
	}
	if l.left -= len(names); l.left < 0 {
		return nil, errNotSearched
	}
	return names, nil
}

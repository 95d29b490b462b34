package safepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrOverlap says that a path is a directory that is kept apart, lies in one or holds one.
var ErrOverlap = errors.New("the one holds the other")

// ResolveApart follows every symbolic link of path, which is absolute, and returns what it leads to, unless that is one of
// the absolute paths in apart, which are followed likewise, lies in one or holds one: the error then matches [ErrOverlap].
// A program that binds paths of others' choice keeps its own directories apart with it: who reaches the mounts of others
// can undo them, and a tree that is bound into itself multiplies.
//
// What does not exist is followed as far as it does; a link to nothing is followed, too: what it names can be made later.
// The answer holds as long as no process changes what lies on the way. A dead filesystem does not answer at all: see
// [mount.RunAbandonable].
func ResolveApart(path string, apart ...string) (string, error) {
	resolved, err := resolveLinks(path, maxDangling)
	if err != nil {
		return "", err
	}
	for _, dir := range apart {
		kept, err := resolveLinks(dir, maxDangling)
		if err != nil {
			return "", err
		}
		if Contains(kept, resolved) || Contains(resolved, kept) {
			return "", fmt.Errorf("%s leads to %s, which holds volumes of this node or is held by them (%s): use another path: %w",
				path, resolved, kept, ErrOverlap)
		}
	}
	return resolved, nil
}

// Contains reports whether path is dir or beneath it, by their text: both are absolute and clean, and no link is followed.
func Contains(dir, path string) bool {
	separator := string(filepath.Separator)
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, separator)+separator)
}

// maxDangling is how many links to nothing are followed, as many as the kernel follows of any.
const maxDangling = 40

// resolveLinks follows the links of path; links is how many to nothing may still come.
func resolveLinks(path string, links int) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	parent := filepath.Dir(path)
	switch {
	case err == nil:
		return resolved, nil
	case !errors.Is(err, fs.ErrNotExist) || parent == path:
		return "", fmt.Errorf("following the links of %s: %w", path, err)
	}
	if parent, err = resolveLinks(parent, links); err != nil {
		return "", err
	}
	path = filepath.Join(parent, filepath.Base(path))
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	target, err := os.Readlink(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("following the links of %s: %w", path, err)
	case links == 0:
		return "", fmt.Errorf("following the links of %s: there are more than %d: %w", path, maxDangling, ErrInvalid)
	case !filepath.IsAbs(target):
		target = parent + string(filepath.Separator) + target
	}
	return resolveLinks(target, links-1)
}

package atomicwriter

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
)

const (
	maxPath    = 4096 // bytes of a path, PATH_MAX
	maxElement = 255  // bytes of one element, NAME_MAX
	maxMode    = 0o777
	// maxOwner is the highest user id; the one above means "leave it" to chown(2).
	maxOwner = math.MaxUint32 - 1
)

// set is a payload that was checked.
type set struct {
	files []file              // sorted by path
	dirs  map[string]struct{} // every directory above a file, without the set's own
}

// file is one file of a set, at a path in its shortest form.
type file struct {
	path string
	FileProjection
}

// newSet checks a payload.
func newSet(payload map[string]FileProjection) (set, error) {
	s := set{dirs: make(map[string]struct{})}
	for name, projection := range payload {
		short, err := checkPath(name)
		if err != nil {
			return set{}, err
		}
		if err := projection.check(); err != nil {
			return set{}, fmt.Errorf("file %q: %w", name, err)
		}
		s.files = append(s.files, file{short, projection})
		for dir := path.Dir(short); dir != "."; dir = path.Dir(dir) {
			s.dirs[dir] = struct{}{}
		}
	}
	slices.SortFunc(s.files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return s, s.checkConflicts()
}

// checkPath returns the shortest form of a path that a file of a set may have.
func checkPath(name string) (string, error) {
	short := path.Clean(name)
	first, _, _ := strings.Cut(short, "/")
	elements := strings.Split(name, "/")
	why := ""
	switch {
	case name == "":
		why = "is empty"
	case len(name) > maxPath:
		return "", fmt.Errorf("path %.64q... is longer than %d bytes: %w", name, maxPath, ErrInvalid)
	case strings.ContainsRune(name, 0):
		why = "holds a NUL"
	case path.IsAbs(name):
		why = "is not relative"
	case slices.Contains(elements, ".."):
		why = `holds an element ".."`
	case short == ".":
		why = "is the directory itself"
	case strings.HasPrefix(first, ".."):
		why = `begins with "..", which is kept for the writer's own names`
	case slices.ContainsFunc(elements, func(e string) bool { return len(e) > maxElement }):
		return "", fmt.Errorf("path %.64q... has an element longer than %d bytes: %w", name, maxElement, ErrInvalid)
	default:
		return short, nil
	}
	return "", fmt.Errorf("path %q %s: %w", name, why, ErrInvalid)
}

func (p FileProjection) check() error {
	if p.Mode < 0 || p.Mode > maxMode {
		return fmt.Errorf("mode %#o is not within 0 and %#o: %w", p.Mode, maxMode, ErrInvalid)
	}
	if p.FsUser != nil && (*p.FsUser < 0 || *p.FsUser > maxOwner) {
		return fmt.Errorf("owner %d is no user id: %w", *p.FsUser, ErrInvalid)
	}
	return nil
}

// checkConflicts refuses two files at one path, and a file where another needs a directory.
func (s set) checkConflicts() error {
	for i, f := range s.files {
		if i > 0 && s.files[i-1].path == f.path {
			return fmt.Errorf("two paths mean the file %q: %w", f.path, ErrInvalid)
		}
		if _, is := s.dirs[f.path]; is {
			return fmt.Errorf("path %q is a file, and the directory of another: %w", f.path, ErrInvalid)
		}
	}
	return nil
}

// find returns the file at a path.
func (s set) find(name string) (file, bool) {
	i, ok := slices.BinarySearchFunc(s.files, name, func(f file, name string) int { return strings.Compare(f.path, name) })
	if !ok {
		return file{}, false
	}
	return s.files[i], true
}

// has reports whether the set has a file or a directory at a path.
func (s set) has(name string) bool {
	_, isDir := s.dirs[name]
	_, isFile := s.find(name)
	return isDir || isFile
}

// visible is a user-visible name.
type visible struct {
	name  string
	owner *int64 // of the first of its files
}

// target is where the link of the name leads to.
func (v visible) target() string { return linkTarget(v.name) }

func linkTarget(name string) string { return dataLink + "/" + name }

// visible returns the first elements of all paths, each once, in order.
func (s set) visible() []visible {
	var names []visible
	seen := make(map[string]bool)
	for _, f := range s.files {
		first, _, _ := strings.Cut(f.path, "/")
		if !seen[first] {
			seen[first] = true
			names = append(names, visible{first, f.FsUser})
		}
	}
	return names
}

// digest tells payloads apart whose paths, modes or owners differ. What the files hold must not be in it: it becomes part
// of a name that more people may read than the files.
func (s set) digest() uint64 {
	h := sha256.New()
	for _, f := range s.files {
		owner := int64(-1)
		if f.FsUser != nil {
			owner = *f.FsUser
		}
		fmt.Fprintf(h, "%d:%s %o %d\n", len(f.path), f.path, f.Mode, owner)
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

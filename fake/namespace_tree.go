package fake

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/volumekit/volumekit/mount"
)

// maxLinks is how many symbolic links a path may lead through, as in Linux.
const maxLinks = 40

// filesystem is a tree of files that mounts show.
type filesystem struct {
	minor          uint32
	fsType, source string
	options        []string
	readOnly       bool
	root           *inode
}

// inode is a file, a directory or a symbolic link.
type inode struct {
	mode     fs.FileMode
	data     []byte
	link     string
	modified time.Time
	children map[string]*inode
}

func newInode(mode fs.FileMode) *inode {
	n := &inode{mode: mode, modified: time.Now()}
	if mode.IsDir() {
		n.children = map[string]*inode{}
	}
	return n
}

// mounted is one mount.
type mounted struct {
	id        uint64
	parent    *mounted
	point     *inode // what it is mounted on, in its parent
	pointPath string // of point, in the filesystem of the parent
	fs        *filesystem
	root      *inode
	rootPath  string // of root, in its filesystem
	path      string
	options   []string // beside ro
	readOnly  bool
	held      int // open files

	propagation
}

// position is where a walk has come to.
type position struct {
	mount *mounted
	node  *inode
	rel   string // within the filesystem
}

func (p position) readOnly() bool { return p.mount.readOnly || p.mount.fs.readOnly }

// isMountPoint reports whether the position is the root of a mount.
func (p position) isMountPoint() bool { return p.mount.root == p.node && p.rel == p.mount.rootPath }

// walk is one resolution of a path.
type walk struct {
	namespace *namespace
	follow    bool // a symbolic link that is the last element
	strict    bool // refuse every symbolic link
	links     int
	stack     []position // the directories that were come through, for ".."
}

// resolve finds what is at name. Errors are errnos.
func (ns *namespace) resolve(name string, w walk) (position, error) {
	w.namespace = ns
	w.stack = []position{ns.cross(position{ns.mounts[0], ns.mounts[0].root, "/"})}
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		element := rest[0]
		rest = rest[1:]
		target, err := w.step(element, rest)
		if err != nil {
			return position{}, err
		}
		if target != "" {
			rest = append(strings.Split(target, "/"), rest...)
		}
	}
	return w.here(), nil
}

// locate finds what is at name as mount.Mounter does: it refuses links on the way, and does not follow one at the end.
func (ns *namespace) locate(name string) (position, error) {
	if _, err := ns.resolve(path.Dir(name), walk{strict: true}); err != nil {
		return position{}, err
	}
	return ns.resolve(name, walk{})
}

func isLast(rest []string) bool {
	for _, element := range rest {
		if element != "" {
			return false
		}
	}
	return true
}

func (w *walk) here() position { return w.stack[len(w.stack)-1] }

// step goes to one element, after which rest is to come, or returns where the symbolic link there leads to.
func (w *walk) step(element string, rest []string) (link string, err error) {
	here := w.here()
	switch {
	case element == "" || element == ".":
		return "", nil
	case !here.node.mode.IsDir():
		return "", syscall.ENOTDIR
	case element == "..":
		w.stack = w.stack[:max(1, len(w.stack)-1)]
		return "", nil
	}
	child := here.node.children[element]
	if child == nil {
		return "", syscall.ENOENT
	}
	if child.mode&fs.ModeSymlink == 0 || isLast(rest) && !w.follow && !w.strict {
		w.stack = append(w.stack, w.namespace.cross(position{here.mount, child, path.Join(here.rel, element)}))
		return "", nil
	}
	if w.links++; w.strict || w.links > maxLinks {
		return "", syscall.ELOOP
	}
	if path.IsAbs(child.link) {
		w.stack = w.stack[:1]
	}
	return child.link, nil
}

// cross goes to the root of the uppermost mount at a position.
func (ns *namespace) cross(p position) position {
	if mp := ns.mountOn(p.mount, p.node); mp != nil {
		return ns.cross(position{mp, mp.root, mp.rootPath})
	}
	return p
}

// entry is a name in a directory, which need not exist.
type entry struct {
	dir  position
	base string
}

// parent finds the directory of name.
func (ns *namespace) parent(name string, w walk) (entry, error) {
	w.follow = true
	dir, err := ns.resolve(path.Dir(name), w)
	if err == nil && !dir.node.mode.IsDir() {
		err = syscall.ENOTDIR
	}
	return entry{dir, path.Base(name)}, err
}

// node is what the directory holds under the name, below every mount there, or nil.
func (e entry) node() *inode { return e.dir.node.children[e.base] }

// create makes a file or a directory, unless there is one.
func (e entry) create(mode fs.FileMode) (*inode, error) {
	switch {
	case e.node() != nil:
		return nil, syscall.EEXIST
	case e.dir.readOnly():
		return nil, syscall.EROFS
	}
	n := newInode(mode)
	e.dir.node.children[e.base] = n
	return n, nil
}

// remove removes a file or an empty directory that nothing is mounted on.
func (ns *namespace) remove(e entry) error {
	n := e.node()
	switch {
	case n == nil:
		return syscall.ENOENT
	case ns.isBusy(n):
		return syscall.EBUSY
	case e.dir.readOnly():
		return syscall.EROFS
	case len(n.children) > 0:
		return syscall.ENOTEMPTY
	}
	delete(e.dir.node.children, e.base)
	return nil
}

func (ns *namespace) isBusy(n *inode) bool {
	for _, mp := range ns.mounts {
		if mp.point == n {
			return true
		}
	}
	return false
}

// cleanName refuses what mount.Mounter refuses: what is no absolute path of the host, and the root directory.
func cleanName(name string) (string, error) {
	clean, err := cleanPath(name)
	if err == nil && clean == "/" {
		return "", fmt.Errorf("the root directory has no parent: %w", mount.ErrInvalid)
	}
	return clean, err
}

func cleanPath(name string) (string, error) {
	if !path.IsAbs(name) || strings.ContainsRune(name, 0) || strings.Contains(name+"/", "/../") {
		return "", fmt.Errorf("path %q is not absolute, or holds a NUL or an element \"..\": %w", name, mount.ErrInvalid)
	}
	return path.Clean(name), nil
}

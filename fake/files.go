package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/atomicwriter"
)

// The methods here are what plugins ask of a node's filesystem, so that those whose volumes are directories run in memory
// too: give the Mounter to them as hostpath.Options.Files and as files.Options.Directories. Files have no owner here.

// CreateApart makes an empty file, unless its directory lies in one of apart (safepath.ErrOverlap). What is there, a link too,
// is an error that matches fs.ErrExist.
func (m *Mounter) CreateApart(ctx context.Context, name string, mode fs.FileMode, apart ...string) error {
	if err := m.outside(ctx, path.Dir(name), apart); err != nil {
		return err
	}
	return m.at("create", name, func(e entry) error {
		_, err := e.create(mode.Perm())
		return err
	})
}

// MkdirApart makes a directory and its parents, unless they lie in one of apart (safepath.ErrOverlap).
func (m *Mounter) MkdirApart(ctx context.Context, name string, mode fs.FileMode, apart ...string) error {
	if err := m.outside(ctx, name, apart); err != nil {
		return err
	}
	return m.MkdirAll(name, mode)
}

// outside refuses a directory that lies in one of apart.
func (m *Mounter) outside(ctx context.Context, dir string, apart []string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	resolved, err := m.followAll(dir)
	if err != nil {
		return err
	}
	for _, other := range apart {
		kept, err := m.followAll(other)
		if err != nil {
			return err
		}
		if safepath.Contains(kept, resolved) {
			return overlaps(dir, resolved, kept)
		}
	}
	return nil
}

func overlaps(name, resolved, kept string) error {
	return fmt.Errorf("%s leads to %s, and %s is kept apart: use another path: %w", name, resolved, kept, safepath.ErrOverlap)
}

// ResolveApart follows the links of name, and those of apart, as safepath.ResolveApart does.
func (m *Mounter) ResolveApart(name string, apart ...string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resolved, err := m.followAll(name)
	if err != nil {
		return "", err
	}
	for _, dir := range apart {
		kept, err := m.followAll(dir)
		if err != nil {
			return "", err
		}
		if safepath.Contains(kept, resolved) || safepath.Contains(resolved, kept) {
			return "", overlaps(name, resolved, kept)
		}
	}
	return resolved, nil
}

// followAll returns what name leads to; what is missing stays as it is written. The caller holds the lock.
func (m *Mounter) followAll(name string) (string, error) {
	here, rest := "/", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(here, rest[0])
		at, err := m.namespace.resolve(next, walk{})
		switch {
		case err == nil && at.node.mode&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", pathError("resolve", name, syscall.ELOOP)
			}
			rest = append(strings.Split(at.node.link, "/"), rest[1:]...)
			if path.IsAbs(at.node.link) {
				here = "/"
			}
			continue
		case err != nil && !errors.Is(err, syscall.ENOENT):
			return "", pathError("resolve", name, err)
		}
		here, rest = next, rest[1:]
	}
	return here, nil
}

// MakeDirectory makes the directory base/name, and base where it is missing, and gives one that is there the mode where it
// lacks a part of it. It reports whether it was not there.
func (m *Mounter) MakeDirectory(ctx context.Context, base, name string, mode fs.FileMode) (made bool, err error) {
	if err := context.Cause(ctx); err != nil {
		return false, err
	}
	if err := m.MkdirAll(base, 0o750); err != nil {
		return false, err
	}
	err = m.at("mkdir", path.Join(base, name), func(e entry) error {
		n := e.node()
		switch {
		case n == nil:
			made = true
			_, err := e.create(fs.ModeDir | mode.Perm())
			return err
		case !n.mode.IsDir():
			return syscall.ENOTDIR
		case e.dir.readOnly():
			return syscall.EROFS
		}
		n.mode |= mode.Perm()
		return nil
	})
	return made, err
}

// Metrics returns a provider that measures nothing: the paths are not those of the machine.
func (m *Mounter) Metrics(string) volume.MetricsProvider { return volume.MetricsNil{} }

// Publish makes the files of payload all that the directory dir holds, in one step. Unlike volume/atomicwriter it makes no
// links: the files are where payload says. Group is not looked at.
func (m *Mounter) Publish(ctx context.Context, dir string, payload map[string]atomicwriter.FileProjection, _ *int64) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	whole := newInode(fs.ModeDir | 0o755)
	for name, file := range payload {
		if err := whole.put(name, file); err != nil {
			return fmt.Errorf("path %q cannot be a file of %s: %w", name, dir, err)
		}
	}
	return m.visit("publish", dir, walk{follow: true}, func(at position) error {
		switch {
		case !at.node.mode.IsDir():
			return syscall.ENOTDIR
		case at.readOnly():
			return syscall.EROFS
		case m.namespace.holdsMount(at.node):
			return syscall.EBUSY
		}
		at.node.children = whole.children
		return nil
	})
}

// put adds a file to a tree that is not published yet.
func (n *inode) put(name string, file atomicwriter.FileProjection) error {
	elements := strings.Split(path.Clean(name), "/")
	if path.IsAbs(name) || strings.HasPrefix(elements[0], "..") || slices.Contains(elements, "..") || elements[0] == "." {
		return atomicwriter.ErrInvalid
	}
	for _, element := range elements[:len(elements)-1] {
		below := n.children[element]
		if below == nil {
			below = newInode(fs.ModeDir | 0o755)
			n.children[element] = below
		}
		if n = below; !n.mode.IsDir() {
			return atomicwriter.ErrInvalid
		}
	}
	last := elements[len(elements)-1]
	if n.children[last] != nil {
		return atomicwriter.ErrInvalid
	}
	made := newInode(fs.FileMode(file.Mode) & fs.ModePerm) //nolint:gosec // A mode has few bits.
	made.data = slices.Clone(file.Data)
	n.children[last] = made
	return nil
}

// RemoveAll removes what is at base/name with all that is in it; it succeeds when nothing is there. Where something is mounted
// in base, at what is to be removed, in it or on the way to it, nothing is removed, and the error matches safepath.ErrMounted.
func (m *Mounter) RemoveAll(ctx context.Context, base, name string) error {
	return m.beneath(ctx, "remove", base, name, func(e entry) error {
		if e.node() == nil {
			return nil
		}
		if e.dir.readOnly() {
			return syscall.EROFS
		}
		delete(e.dir.node.children, e.base)
		return nil
	})
}

// RemoveContent is RemoveAll for what is in the directory base/name, which must be there and stays.
func (m *Mounter) RemoveContent(ctx context.Context, base, name string) error {
	return m.beneath(ctx, "empty", base, name, func(e entry) error {
		n := e.node()
		switch {
		case n == nil:
			return syscall.ENOENT
		case !n.mode.IsDir():
			return syscall.ENOTDIR
		case e.dir.readOnly():
			return syscall.EROFS
		}
		clear(n.children)
		return nil
	})
}

// beneath does work at a name beneath base, on the way to which is neither a link nor a mount, and in which nothing is mounted.
func (m *Mounter) beneath(ctx context.Context, op, base, name string, work func(entry) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	root, err := m.namespace.resolve(base, walk{follow: true})
	if err != nil {
		return pathError(op, base, err)
	}
	here := entry{root, path.Base(name)}
	for element := range strings.SplitSeq(path.Dir(path.Clean(name)), "/") {
		if element == "." {
			break
		}
		if here, err = here.into(m, element); err != nil {
			return pathError(op, path.Join(base, name), err)
		}
	}
	if n := here.node(); n != nil && m.namespace.holdsMount(n) {
		return pathError(op, path.Join(base, name), safepath.ErrMounted)
	}
	return pathError(op, path.Join(base, name), work(here))
}

// into goes one directory down, and through nothing else.
func (e entry) into(m *Mounter, element string) (entry, error) {
	n := e.dir.node.children[element]
	switch {
	case n == nil:
		return e, syscall.ENOENT
	case m.namespace.isBusy(n):
		return e, safepath.ErrMounted
	case n.mode&fs.ModeSymlink != 0:
		return e, safepath.ErrEscapes
	case !n.mode.IsDir():
		return e, syscall.ENOTDIR
	}
	return entry{position{e.dir.mount, n, path.Join(e.dir.rel, element)}, e.base}, nil
}

// holdsMount reports whether something is mounted on n or beneath it.
func (ns *namespace) holdsMount(n *inode) bool {
	if ns.isBusy(n) {
		return true
	}
	for _, child := range n.children {
		if ns.holdsMount(child) {
			return true
		}
	}
	return false
}

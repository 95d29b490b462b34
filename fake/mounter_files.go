package fake

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"syscall"
	"time"
)

// Mkdir makes a directory, as os.Mkdir does.
func (m *Mounter) Mkdir(name string, perm fs.FileMode) error {
	return m.at("mkdir", name, func(e entry) error {
		_, err := e.create(fs.ModeDir | perm.Perm())
		return err
	})
}

// MkdirAll makes a directory and its parents, as os.MkdirAll does.
func (m *Mounter) MkdirAll(name string, perm fs.FileMode) error {
	name = path.Clean(name)
	info, err := m.Stat(name)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
	}
	if err := m.MkdirAll(path.Dir(name), perm); err != nil {
		return err
	}
	if err := m.Mkdir(name, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// WriteFile replaces the content of a file, which is made when there is none, as os.WriteFile does.
func (m *Mounter) WriteFile(name string, data []byte, perm fs.FileMode) error {
	return m.at("open", name, func(e entry) error {
		at, err := m.namespace.resolve(name, walk{follow: true})
		if errors.Is(err, syscall.ENOENT) && e.node() == nil {
			at = e.dir
			at.node, err = e.create(perm.Perm())
		}
		switch {
		case err != nil:
			return err
		case at.node.mode.IsDir():
			return syscall.EISDIR
		case at.readOnly():
			return syscall.EROFS
		}
		at.node.data, at.node.modified = slices.Clone(data), time.Now()
		return nil
	})
}

// ReadFile reads a file, as os.ReadFile does.
func (m *Mounter) ReadFile(name string) (data []byte, err error) {
	err = m.visit("open", name, walk{follow: true}, func(at position) error {
		if at.node.mode.IsDir() {
			return syscall.EISDIR
		}
		data = slices.Clone(at.node.data)
		return nil
	})
	return data, err
}

// Chmod changes the mode of a file or a directory, as os.Chmod does.
func (m *Mounter) Chmod(name string, mode fs.FileMode) error {
	return m.visit("chmod", name, walk{follow: true}, func(at position) error {
		if at.readOnly() {
			return syscall.EROFS
		}
		const settable = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
		at.node.mode = at.node.mode&^settable | mode&settable
		return nil
	})
}

// Symlink makes a symbolic link at newname, as os.Symlink does.
func (m *Mounter) Symlink(oldname, newname string) error {
	return m.at("symlink", newname, func(e entry) error {
		n, err := e.create(fs.ModeSymlink | 0o777)
		if err == nil {
			n.link = oldname
		}
		return err
	})
}

// Remove removes a file or an empty directory, as os.Remove does.
func (m *Mounter) Remove(name string) error {
	return m.at("remove", name, m.namespace.remove)
}

// Stat describes what is at name, as os.Stat does.
func (m *Mounter) Stat(name string) (info fs.FileInfo, err error) {
	err = m.visit("stat", name, walk{follow: true}, func(at position) error {
		info = infoOf(path.Base(name), at.node)
		return nil
	})
	return info, err
}

// Lstat is Stat for the symbolic link itself, as os.Lstat is.
func (m *Mounter) Lstat(name string) (info fs.FileInfo, err error) {
	err = m.visit("lstat", name, walk{}, func(at position) error {
		info = infoOf(path.Base(name), at.node)
		return nil
	})
	return info, err
}

// ReadDir lists a directory by name, as os.ReadDir does.
func (m *Mounter) ReadDir(name string) (entries []fs.DirEntry, err error) {
	err = m.visit("open", name, walk{follow: true}, func(at position) error {
		if !at.node.mode.IsDir() {
			return syscall.ENOTDIR
		}
		for _, base := range slices.Sorted(maps.Keys(at.node.children)) {
			entries = append(entries, fs.FileInfoToDirEntry(infoOf(base, at.node.children[base])))
		}
		return nil
	})
	return entries, err
}

// Capacity returns the size in bytes of the filesystem at name, as statfs does. Only a tmpfs with an option size in bytes, k, m
// or g has one; every other filesystem returns an error that matches errors.ErrUnsupported.
func (m *Mounter) Capacity(name string) (bytes int64, err error) {
	err = m.visit("statfs", name, walk{follow: true}, func(at position) error {
		bytes, err = at.mount.fs.capacity()
		return err
	})
	return bytes, err
}

// Hold keeps the file at name open, as a process would, so its mount is busy until release is called. Release may be called
// more than once.
func (m *Mounter) Hold(name string) (release func(), err error) {
	err = m.visit("open", name, walk{follow: true}, func(at position) error {
		at.mount.held++
		released := false
		release = func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if !released {
				released = true
				at.mount.held--
			}
		}
		return nil
	})
	return release, err
}

// at finds the directory of name and does work there.
func (m *Mounter) at(op, name string, work func(entry) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.namespace.parent(path.Clean(name), walk{})
	if err == nil {
		err = work(e)
	}
	return pathError(op, name, err)
}

// visit finds what is at name and does work there.
func (m *Mounter) visit(op, name string, w walk, work func(position) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, err := m.namespace.resolve(name, w)
	if err == nil {
		err = work(at)
	}
	return pathError(op, name, err)
}

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// fileInfo is what Stat returns.
type fileInfo struct {
	name     string
	size     int64
	mode     fs.FileMode
	modified time.Time
}

func infoOf(name string, n *inode) fs.FileInfo {
	return fileInfo{name: name, size: int64(len(n.data)), mode: n.mode, modified: n.modified}
}

// Name returns the last element of the path.
func (i fileInfo) Name() string { return i.name }

// Size returns the number of bytes.
func (i fileInfo) Size() int64 { return i.size }

// Mode returns type and permissions.
func (i fileInfo) Mode() fs.FileMode { return i.mode }

// ModTime returns when the content was changed.
func (i fileInfo) ModTime() time.Time { return i.modified }

// IsDir reports whether it is a directory.
func (i fileInfo) IsDir() bool { return i.mode.IsDir() }

// Sys returns nil.
func (i fileInfo) Sys() any { return nil }

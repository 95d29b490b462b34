package ownership

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/treewalk"
)

// visitor changes the files that one worker of a walk visits.
type visitor struct {
	work    *work
	rules   rules
	counter *counter
	sys     system
}

var _ treewalk.Visitor = (*visitor)(nil)

func (w *work) visitor(fchmodat2 fchmodat2) *visitor {
	return &visitor{work: w, rules: w.rules, counter: w.counter(), sys: system{fchmodat2: fchmodat2}}
}

// Visit implements [treewalk.Visitor]. It changes a directory before the walk reads it: files that a workload makes in it from then
// on inherit the group.
func (v *visitor) Visit(e *treewalk.Entry) treewalk.Verdict {
	v.counter.visited.Add(1)
	if e.Stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		v.counter.links.Add(1)
	}
	if v.rules.changeOf(&e.Stat).none() {
		return treewalk.Next
	}
	if err := e.Pin(); err != nil {
		return v.notPinned(err)
	}
	if op, err := v.apply(e.FD(), &e.Stat); err != nil {
		return v.Fail(&fs.PathError{Op: op, Path: e.Path(), Err: err})
	}
	return treewalk.Next
}

// notPinned skips an entry that has vanished or on which something was mounted. The walk counts these.
func (v *visitor) notPinned(err error) treewalk.Verdict {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, treewalk.ErrForeign) {
		return max(v.Fail(err), treewalk.Prune)
	}
	return treewalk.Prune
}

// Fail implements [treewalk.Visitor]. It records the failure. It stops the walk if the next file will fail in the same way.
func (v *visitor) Fail(err error) treewalk.Verdict {
	v.work.fail(err)
	if ofTheWhole(errnoOf(err)) {
		return treewalk.Stop
	}
	return treewalk.Next
}

// ofTheWhole reports whether an error concerns the whole filesystem or this process, not one file.
func ofTheWhole(errno unix.Errno) bool {
	switch errno {
	case unix.EROFS, // it went read-only
		unix.ENOTCONN, unix.ECONNABORTED, unix.ESHUTDOWN, // its server has gone
		unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return true
	default:
		return false
	}
}

// apply changes the inode that fd is open on and st describes. op is the call that failed.
func (v *visitor) apply(fd int, st *unix.Statx_t) (op string, err error) {
	c := v.rules.changeOf(st)
	if c.group {
		if errno := fchown(fd, v.rules.gid); errno != 0 {
			return "chown", errno
		}
		v.counter.groupChanged.Add(1)
	}
	if c.clearsSetID {
		v.counter.setIDCleared.Add(1)
	}
	if c.mode {
		if errno := v.sys.fchmod(fd, c.newMode); errno != 0 {
			return "chmod", errno
		}
		v.counter.modeChanged.Add(1)
	}
	if c.none() || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return "", nil
	}
	return v.verify(fd)
}

// verify reads a changed directory back. Without CAP_FSETID the kernel drops setgid silently, and some filesystems report success
// without a change.
func (v *visitor) verify(fd int) (op string, err error) {
	var st unix.Statx_t
	if errno := statxFD(fd, &st); errno != 0 {
		return "statx", errno
	}
	if !v.rules.changeOf(&st).none() {
		return "chown", ErrNotKept
	}
	return "", nil
}

// root changes the root.
func (v *visitor) root(tree *treewalk.Tree) error {
	v.counter.visited.Add(1)
	var st unix.Statx_t
	if errno := statxFD(tree.FD(), &st); errno != 0 {
		return v.rootFailed("statx", errno)
	}
	if op, err := v.apply(tree.FD(), &st); err != nil {
		return v.rootFailed(op, err)
	}
	return nil
}

func (v *visitor) rootFailed(op string, err error) error {
	v.work.fail(&fs.PathError{Op: op, Path: v.work.dir, Err: err})
	return v.work.failed()
}

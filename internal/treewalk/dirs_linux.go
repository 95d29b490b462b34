package treewalk

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// dir is a directory of the tree that was opened at least once. It is kept while it has references.
type dir struct {
	parent *dir // nil for the root
	name   []byte
	id     inode
	// refs counts the work that needs the directory: reading it, directories in it to be read, entries in it to be visited.
	refs atomic.Int32

	// Guarded by dirs.mu.
	fd         int // -1 while it is closed to save descriptors
	users      int // the number of present uses of fd
	prev, next *dir
}

type inode struct {
	major, minor uint32
	ino          uint64
}

func inodeOf(st *unix.Statx_t) inode { return inode{st.Dev_major, st.Dev_minor, st.Ino} }

// dirs is the list of the open directories, in the order in which they were opened. The root is not among them.
type dirs struct {
	max int

	mu   sync.Mutex
	list dir // the head of a circular list
	open int
}

func newDirs(most int) *dirs {
	d := &dirs{max: most}
	d.list.prev, d.list.next = &d.list, &d.list
	return d
}

// add adds an open directory, in use until done. If too many are open, it closes another one that is not in use. If another
// goroutine has opened the directory meanwhile, add closes fd.
func (s *dirs) add(d *dir, fd int) {
	s.mu.Lock()
	spare := fd
	if d.fd < 0 {
		d.fd, spare = fd, -1
		s.link(d)
	}
	d.users++
	if spare < 0 && s.open > s.max {
		spare = s.takeOldest()
	}
	s.mu.Unlock()
	if spare >= 0 {
		closeFD(spare)
	}
}

// use returns the descriptor of d, and keeps it open until done. It returns -1 if d is closed.
func (s *dirs) use(d *dir) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.fd >= 0 {
		d.users++
	}
	return d.fd
}

// useNearest is use for d, or for the nearest open directory above it. below are the closed directories from d up to that one.
func (s *dirs) useNearest(d *dir) (above *dir, below []*dir) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; d.fd < 0; d = d.parent {
		below = append(below, d)
	}
	d.users++
	return d, below
}

// done ends one use. The descriptor stays open until the directory has no references, or too many are open.
func (s *dirs) done(d *dir) {
	s.mu.Lock()
	d.users--
	s.mu.Unlock()
}

// drop removes one reference to d. It closes d if that was the last one, unless d is the root.
func (s *dirs) drop(d *dir) {
	if d.refs.Add(-1) > 0 || d.parent == nil {
		return
	}
	s.mu.Lock()
	fd := -1
	if d.fd >= 0 && d.users == 0 {
		fd = s.unlink(d)
	}
	s.mu.Unlock()
	if fd >= 0 {
		closeFD(fd)
	}
}

// spare closes the first opened directory that is not in use, and reports whether there was one.
func (s *dirs) spare() bool {
	s.mu.Lock()
	fd := s.takeOldest()
	s.mu.Unlock()
	if fd < 0 {
		return false
	}
	closeFD(fd)
	return true
}

// closeAll closes all open directories after the walk.
func (s *dirs) closeAll() {
	for s.spare() {
		continue
	}
}

// takeOldest takes the first opened directory that is not in use out of the list, and returns its descriptor; -1 if there is none.
// A walk goes deep before it goes wide, so it will need this directory last.
func (s *dirs) takeOldest() int {
	for d := s.list.next; d != &s.list; d = d.next {
		if d.users == 0 {
			return s.unlink(d)
		}
	}
	return -1
}

func (s *dirs) link(d *dir) {
	last := s.list.prev
	d.prev, d.next = last, &s.list
	last.next, s.list.prev = d, d
	s.open++
}

func (s *dirs) unlink(d *dir) (fd int) {
	d.prev.next, d.next.prev = d.next, d.prev
	d.prev, d.next = nil, nil
	fd, d.fd = d.fd, -1
	s.open--
	return fd
}

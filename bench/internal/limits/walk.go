package limits

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// WalkOptions selects the variant of the parallel fd-relative walk.
type WalkOptions struct {
	Workers     int
	RawSyscalls bool // statx without telling the Go scheduler: cheapest when the cache is warm
	SortByInode bool // stat each directory's entries in inode order: helps when the cache is cold
}

// Usage is what du reports: allocated bytes and inodes, hard links counted once.
type Usage struct{ Bytes, Inodes int64 }

// OwnershipStats counts what a group walk saw and changed.
type OwnershipStats struct{ Seen, Chowned, Chmodded int64 }

const (
	direntName   = 19 // offset of d_name in struct linux_dirent64
	direntBufLen = 64 << 10
	statxMask    = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_GID | unix.STATX_INO | unix.STATX_BLOCKS
	statxFlags   = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	sysFchmodat2 = 452
)

type openDir struct {
	fd   int
	refs atomic.Int32
}

func (d *openDir) release() {
	if d.refs.Add(-1) == 0 {
		closeFD(d.fd)
	}
}

// task is a directory to open below parent (name set, NUL-terminated), or a
// batch of raw entries of parent (batch set). It owns one reference to parent.
type task struct {
	parent *openDir
	name   []byte
	batch  []byte
}

type link struct {
	ino    uint64
	blocks int64
}

type worker struct {
	p     *pool
	local []task
	buf   []byte
	stx   unix.Statx_t
	order []dirent // scratch for SortByInode

	bytes, inodes int64
	links         []link
	own           OwnershipStats
}

type dirent struct {
	ino uint64
	off int
}

// pool shares work between workers: each keeps a private LIFO and gives away
// its oldest half whenever another worker is waiting.
type pool struct {
	opts  WalkOptions
	dev   [2]uint32
	visit func(w *worker, dirfd int, name unsafe.Pointer) unix.Errno

	mu      sync.Mutex
	cond    sync.Cond
	shared  []task
	waiting atomic.Int32
	done    bool
	err     unix.Errno
}

func (p *pool) fail(e unix.Errno) {
	p.mu.Lock()
	if p.err == 0 {
		p.err = e
	}
	p.mu.Unlock()
}

func (p *pool) take() (task, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if n := len(p.shared); n > 0 {
			t := p.shared[n-1]
			p.shared = p.shared[:n-1]
			return t, true
		}
		if p.done {
			return task{}, false
		}
		if int(p.waiting.Add(1)) == p.opts.Workers {
			p.done = true
			p.cond.Broadcast()
			return task{}, false
		}
		p.cond.Wait()
		p.waiting.Add(-1)
		if p.done {
			return task{}, false
		}
	}
}

func (p *pool) give(ts ...task) {
	p.mu.Lock()
	p.shared = append(p.shared, ts...)
	p.mu.Unlock()
	if len(ts) == 1 {
		p.cond.Signal()
	} else {
		p.cond.Broadcast()
	}
}

func (w *worker) loop() {
	for {
		var t task
		w.share()
		if n := len(w.local); n > 0 {
			t, w.local = w.local[n-1], w.local[:n-1]
		} else {
			var ok bool
			if t, ok = w.p.take(); !ok {
				return
			}
		}
		if t.batch != nil {
			w.entries(t.parent, t.batch)
		} else {
			w.directory(t)
		}
		t.parent.release()
	}
}

func (w *worker) directory(t task) {
	fd, _, e := unix.Syscall6(unix.SYS_OPENAT, uintptr(t.parent.fd), uintptr(unsafe.Pointer(&t.name[0])),
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		w.p.fail(e)
		return
	}
	d := &openDir{fd: int(fd)}
	d.refs.Store(1)
	w.readDir(d)
	d.release()
}

func (w *worker) readDir(d *openDir) {
	for {
		n, _, e := unix.Syscall(unix.SYS_GETDENTS64, uintptr(d.fd), uintptr(unsafe.Pointer(&w.buf[0])), direntBufLen)
		if e != 0 {
			w.p.fail(e)
			return
		}
		if n == 0 {
			return
		}
		if w.p.waiting.Load() > 0 && n > direntBufLen/2 {
			d.refs.Add(1)
			w.p.give(task{parent: d, batch: append([]byte(nil), w.buf[:n]...)})
			continue
		}
		w.entries(d, w.buf[:n])
	}
}

func (w *worker) entries(d *openDir, buf []byte) {
	if w.p.opts.SortByInode {
		w.order = w.order[:0]
		for off := 0; off < len(buf); off += int(binary.LittleEndian.Uint16(buf[off+16:])) {
			w.order = append(w.order, dirent{binary.LittleEndian.Uint64(buf[off:]), off})
		}
		slices.SortFunc(w.order, func(a, b dirent) int {
			if a.ino < b.ino {
				return -1
			}
			return 1
		})
		for _, de := range w.order {
			w.entry(d, buf[de.off:])
		}
		return
	}
	for off := 0; off < len(buf); off += int(binary.LittleEndian.Uint16(buf[off+16:])) {
		w.entry(d, buf[off:])
	}
}

func (w *worker) entry(d *openDir, ent []byte) {
	if ent[direntName] == '.' && (ent[direntName+1] == 0 || ent[direntName+1] == '.' && ent[direntName+2] == 0) {
		return
	}
	name := unsafe.Pointer(&ent[direntName])
	if e := w.p.visit(w, d.fd, name); e != 0 {
		if e != unix.ENOENT && e != unix.EXDEV {
			w.p.fail(e)
		}
		return
	}
	if w.stx.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	n := direntName
	for ent[n] != 0 {
		n++
	}
	d.refs.Add(1)
	w.local = append(w.local, task{parent: d, name: append([]byte(nil), ent[direntName:n+1]...)})
	w.share()
}

// share gives the oldest half of the private tasks away if another worker waits.
func (w *worker) share() {
	if len(w.local) > 1 && w.p.waiting.Load() > 0 {
		half := len(w.local) / 2
		w.p.give(w.local[:half]...)
		w.local = append(w.local[:0], w.local[half:]...)
	}
}

func (w *worker) stat(dirfd int, name unsafe.Pointer) unix.Errno {
	var e unix.Errno
	if w.p.opts.RawSyscalls {
		_, _, e = unix.RawSyscall6(unix.SYS_STATX, uintptr(dirfd), uintptr(name), statxFlags, statxMask, uintptr(unsafe.Pointer(&w.stx)), 0)
	} else {
		_, _, e = unix.Syscall6(unix.SYS_STATX, uintptr(dirfd), uintptr(name), statxFlags, statxMask, uintptr(unsafe.Pointer(&w.stx)), 0)
	}
	if e == 0 && (w.stx.Dev_major != w.p.dev[0] || w.stx.Dev_minor != w.p.dev[1]) {
		return unix.EXDEV // another file system is mounted here: neither count nor descend
	}
	return e
}

func (w *worker) count() {
	if w.stx.Nlink > 1 && w.stx.Mode&unix.S_IFMT != unix.S_IFDIR {
		w.links = append(w.links, link{w.stx.Ino, int64(w.stx.Blocks)})
		return
	}
	w.inodes++
	w.bytes += int64(w.stx.Blocks) * 512
}

// walk visits everything below path (not path itself) and returns the workers.
func walk(path string, opts WalkOptions, root func(w *worker), visit func(*worker, int, unsafe.Pointer) unix.Errno) ([]*worker, error) {
	opts.Workers = max(opts.Workers, 1)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	p := &pool{opts: opts, visit: visit}
	p.cond.L = &p.mu
	ws := make([]*worker, opts.Workers)
	for i := range ws {
		ws[i] = &worker{p: p, buf: make([]byte, direntBufLen)}
	}
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, statxMask, &ws[0].stx); err != nil {
		closeFD(fd)
		return nil, err
	}
	p.dev = [2]uint32{ws[0].stx.Dev_major, ws[0].stx.Dev_minor}
	if root != nil {
		root(ws[0])
	}
	d := &openDir{fd: fd}
	d.refs.Store(2)
	var wg sync.WaitGroup
	for _, w := range ws[1:] {
		wg.Go(w.loop)
	}
	ws[0].readDir(d)
	d.release()
	ws[0].loop()
	wg.Wait()
	d.release()
	if p.err != 0 {
		return ws, p.err
	}
	return ws, nil
}

// DiskUsage is the estimate of the limit for du.
func DiskUsage(path string, opts WalkOptions) (Usage, error) {
	ws, err := walk(path, opts, (*worker).count, func(w *worker, dirfd int, name unsafe.Pointer) unix.Errno {
		e := w.stat(dirfd, name)
		if e == 0 {
			w.count()
		}
		return e
	})
	var u Usage
	seen := map[uint64]struct{}{}
	for _, w := range ws {
		u.Bytes += w.bytes
		u.Inodes += w.inodes
		for _, l := range w.links {
			if _, dup := seen[l.ino]; !dup {
				seen[l.ino] = struct{}{}
				u.Inodes++
				u.Bytes += l.blocks * 512
			}
		}
	}
	return u, err
}

// ApplyGroup is the estimate of the limit for fsGroup: set the group and add
// g+rw (g+rwxs on directories), touching only what differs; the root last.
func ApplyGroup(path string, gid uint32, opts WalkOptions) (OwnershipStats, error) {
	ws, err := walk(path, opts, nil, func(w *worker, dirfd int, name unsafe.Pointer) unix.Errno {
		if e := w.stat(dirfd, name); e != 0 {
			return e
		}
		return w.own.apply(&w.stx, dirfd, uintptr(name), gid)
	})
	var st OwnershipStats
	for _, w := range ws {
		st.Seen += w.own.Seen
		st.Chowned += w.own.Chowned
		st.Chmodded += w.own.Chmodded
	}
	if err != nil {
		return st, err
	}
	var stx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, statxMask, &stx); err != nil {
		return st, err
	}
	cpath, err := unix.BytePtrFromString(path)
	if err != nil {
		return st, err
	}
	if e := st.apply(&stx, unix.AT_FDCWD, uintptr(unsafe.Pointer(cpath)), gid); e != 0 {
		return st, e
	}
	return st, nil
}

func (s *OwnershipStats) apply(stx *unix.Statx_t, dirfd int, name uintptr, gid uint32) unix.Errno {
	s.Seen++
	if stx.Gid != gid {
		s.Chowned++
		if _, _, e := unix.Syscall6(unix.SYS_FCHOWNAT, uintptr(dirfd), name, ^uintptr(0), uintptr(gid), unix.AT_SYMLINK_NOFOLLOW, 0); e != 0 {
			return e
		}
	}
	mode, mask := uint32(stx.Mode), uint32(0o660)
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return 0
	case unix.S_IFDIR:
		mask = 0o770 | unix.S_ISGID
	}
	if mode|mask != mode {
		s.Chmodded++
		if _, _, e := unix.Syscall6(sysFchmodat2, uintptr(dirfd), name, uintptr((mode|mask)&0o7777), unix.AT_SYMLINK_NOFOLLOW, 0, 0); e != 0 {
			return e
		}
	}
	return 0
}

// ResetGroup undoes ApplyGroup: group 0, files 0644, directories 0755.
func ResetGroup(path string, opts WalkOptions) error {
	_, err := walk(path, opts, nil, func(w *worker, dirfd int, name unsafe.Pointer) unix.Errno {
		if e := w.stat(dirfd, name); e != 0 {
			return e
		}
		return w.reset(uintptr(dirfd), uintptr(name))
	})
	if err != nil {
		return err
	}
	if err := unix.Lchown(path, -1, 0); err != nil {
		return err
	}
	return unix.Chmod(path, 0o755)
}

// reset undoes apply for what was looked at last.
func (w *worker) reset(dirfd, name uintptr) unix.Errno {
	if w.stx.Gid != 0 {
		if _, _, e := unix.Syscall6(unix.SYS_FCHOWNAT, dirfd, name, ^uintptr(0), 0, unix.AT_SYMLINK_NOFOLLOW, 0); e != 0 {
			return e
		}
	}
	wanted := uint32(0o644)
	switch w.stx.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return 0
	case unix.S_IFDIR:
		wanted = 0o755
	}
	if uint32(w.stx.Mode)&0o7777 == wanted {
		return 0
	}
	_, _, e := unix.Syscall6(sysFchmodat2, dirfd, name, uintptr(wanted), unix.AT_SYMLINK_NOFOLLOW, 0, 0)
	return e
}

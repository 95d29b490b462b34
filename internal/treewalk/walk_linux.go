package treewalk

import (
	"context"
	"encoding/binary"
	"io/fs"
	"runtime"

	"golang.org/x/sys/unix"
)

// Verdict is what a visitor wants to happen next.
type Verdict uint8

// The verdicts. The zero value is Next.
const (
	Next  Verdict = iota // go on; a directory is entered
	Prune                // go on; a directory is not entered
	Stop                 // end the walk: no visit begins any more; those under way end
)

// Visitor is told of what is in a tree. Its methods are called one at a time, all by one worker.
type Visitor interface {
	// Visit is told of one entry. The entry is only valid during the call.
	Visit(e *Entry) Verdict
	// Fail is told of what could not be looked at, opened or read: a *fs.PathError whose Path begins with that of the
	// root. Next and Prune go on with the rest of the tree.
	Fail(err error) Verdict
}

const (
	bufferSize = 32 << 10
	// minBatch is how many bytes of entries are worth giving to another worker.
	minBatch = 2 << 10
	// yieldEvery is after how many entries a worker lets others run, which must be well within 10 ms.
	yieldEvery = 256
	// noYieldRounds is how many times a worker does not yield after a system call of it has waited.
	noYieldRounds = 8
	// The fields of struct linux_dirent64, see getdents64(2).
	direntLength = 16
	direntName   = 19
)

// worker is one goroutine of a walk.
type worker struct {
	tree    *Tree
	dirs    *dirs
	pool    *pool
	visitor Visitor

	tasks   []task
	entry   Entry
	buf     []byte
	path    []byte // scratch
	pinning bool   // whether entries are pinned before they are visited
	seen    int    // entries
	noYield int    // rounds until it may yield
	thread  thread // that ran it when it last could have yielded
}

// Walk tells visitors of everything beneath the root, and of nothing when the root is no directory. newVisitor is called
// once for each worker, before any of them starts. The error is nil when the walk is complete, the error of ctx when that
// has ended it, and [ErrStopped] when a visitor has.
//
// The workers have ended when Walk returns.
func (t *Tree) Walk(ctx context.Context, newVisitor func() Visitor) error {
	if !isDir(&t.stat) {
		return ctx.Err()
	}
	open := newDirs(t.options.MaxOpen)
	defer open.closeAll()
	workers := make([]*worker, t.options.Workers)
	for i := range workers {
		workers[i] = &worker{tree: t, dirs: open, visitor: newVisitor()}
	}
	p := newPool(workers)
	for _, w := range workers {
		w.pool = p
	}
	root := &dir{fd: t.fd, users: 1, id: inodeOf(&t.stat)}
	root.refs.Store(2)
	p.shared = []task{{dir: root}}
	defer context.AfterFunc(ctx, p.stop)()
	workers[0].run()
	p.running.Wait()
	if !p.stopped.Load() {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return ErrStopped
}

// run does tasks until there are none.
func (w *worker) run() {
	w.buf = make([]byte, bufferSize)
	for !w.pool.stopped.Load() {
		w.share()
		t, ok := w.next()
		if !ok {
			return
		}
		w.do(t)
	}
}

func (w *worker) next() (task, bool) {
	n := len(w.tasks)
	if n == 0 {
		return w.pool.take()
	}
	t := w.tasks[n-1]
	w.tasks[n-1] = task{}
	w.tasks = w.tasks[:n-1]
	return t, true
}

// share gives the oldest half of the tasks away when another worker waits. These are the nearest to the root, and thus
// likely to be the biggest.
func (w *worker) share() {
	if len(w.tasks) < 2 || w.pool.idleWorkers.Load() == 0 {
		return
	}
	half := len(w.tasks) / 2
	w.pool.give(w.tasks[:half]...)
	kept := copy(w.tasks, w.tasks[half:])
	clear(w.tasks[kept:])
	w.tasks = w.tasks[:kept]
}

func (w *worker) do(t task) {
	at, err := w.acquire(t.dir)
	if err != nil {
		w.dirs.drop(t.dir)
		w.apply(w.visitor.Fail(err))
		return
	}
	switch {
	case t.batch != nil:
		w.entries(t.dir, at, t.batch)
		w.pool.putBuffer(t.batch)
	case t.name == nil:
		w.read(t.dir, at)
	default:
		w.enter(t, at)
		return
	}
	w.release(t.dir)
}

// enter opens the directory that a task names, beneath at, and reads it.
func (w *worker) enter(t task, at int) {
	fd, errno := w.openSpare(func() (int, unix.Errno) { return w.tree.openChild(at, &t.name[0]) })
	w.release(t.dir)
	child := &dir{parent: t.dir, name: t.name, fd: -1}
	if errno == 0 {
		errno = w.identify(fd, child)
	}
	if errno != 0 {
		w.notEntered(child, errno)
		return
	}
	child.refs.Store(1)
	w.dirs.add(child, fd)
	w.read(child, fd)
	w.release(child)
}

// identify looks at what was opened: something may have been mounted since the name was looked at.
func (w *worker) identify(fd int, child *dir) unix.Errno {
	var st unix.Statx_t
	errno := w.tree.look(fd, empty(), byFD, &st)
	if errno != 0 {
		closeFD(fd)
	}
	child.id = inodeOf(&st)
	return errno
}

// notEntered tells of a directory that was there a moment ago. One that has become a file or a link has vanished.
func (w *worker) notEntered(d *dir, errno unix.Errno) {
	switch errno {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		w.tree.vanished.Add(1)
	case unix.EXDEV:
		w.tree.foreign.Add(1)
	default:
		w.fail("open", w.tree.pathOf(d, nil), errno)
	}
}

// read reads a directory. Where others wait for work, they get parts of it to look at.
func (w *worker) read(d *dir, fd int) {
	for !w.pool.stopped.Load() {
		n, errno := getdents(fd, w.buf)
		switch {
		case errno == unix.ENOENT: // the directory was removed, and thus is empty
			return
		case errno != 0:
			w.fail("readdir", w.tree.pathOf(d, nil), errno)
			return
		case n == 0:
			return
		}
		if w.giveBatch(d, n) {
			continue
		}
		w.entries(d, fd, w.buf[:n])
	}
}

// giveBatch gives the first n bytes of the buffer away when they are wanted, and takes another buffer.
func (w *worker) giveBatch(d *dir, n int) bool {
	if n < minBatch || w.pool.idleWorkers.Load() == 0 {
		return false
	}
	spare := w.pool.buffer()
	if spare == nil {
		return false
	}
	d.refs.Add(1)
	w.pool.give(task{dir: d, batch: w.buf[:n]})
	w.buf = spare
	return true
}

// entries visits what is in buf.
func (w *worker) entries(d *dir, at int, buf []byte) {
	for len(buf) > 0 && !w.pool.stopped.Load() {
		length := binary.NativeEndian.Uint16(buf[direntLength:])
		if name := buf[direntName:length]; !isDot(name) {
			w.visit(d, at, name)
			w.yield()
		}
		buf = buf[length:]
	}
}

// yield lets other goroutines run after every yieldEvery entries. If a worker does not yield, the runtime takes its processor
// after 10 ms, in the middle of a system call, and then checks for long calls every few microseconds. That costs about a tenth of
// the time of a walk through cached directories. If system calls wait, for a disk or a server, that check is what lets other
// workers continue, and yield does nothing for noYieldRounds.
func (w *worker) yield() {
	if w.seen++; w.seen%yieldEvery != 0 {
		return
	}
	w.noYield = max(w.noYield-1, 0)
	if now := currentThread(); now.id == w.thread.id && now.waits != w.thread.waits {
		w.noYield = noYieldRounds
	}
	if w.noYield == 0 {
		runtime.Gosched()
	}
	w.thread = currentThread()
}

func isDot(name []byte) bool {
	return name[0] == '.' && (name[1] == 0 || name[1] == '.' && name[2] == 0)
}

// visit tells the visitor of one entry.
func (w *worker) visit(d *dir, at int, name []byte) {
	e := &w.entry
	e.worker, e.dir, e.at, e.name, e.fd = w, d, at, name, -1
	if errno := w.lookAt(e); errno != 0 {
		e.unpin()
		if errno != unix.ENOENT && errno != unix.EXDEV {
			w.fail("statx", e.Path(), errno)
			return
		}
		_ = w.skipped(errno, e)
		return
	}
	verdict := w.visitor.Visit(e)
	e.unpin()
	w.apply(verdict)
	if verdict == Next && e.IsDir() {
		d.refs.Add(1)
		w.tasks = append(w.tasks, task{dir: d, name: append([]byte(nil), name[:len(trimZero(name))+1]...)})
		w.share()
	}
}

// lookAt reads the attributes of an entry: by its name or, if a visitor wants that, by a descriptor that pins it.
func (w *worker) lookAt(e *Entry) unix.Errno {
	if w.pinning || w.tree.options.Without.has(FeatureMountRoot) {
		w.pinning = false
		return e.open()
	}
	return w.tree.look(e.at, &e.name[0], byName, &e.Stat)
}

func (w *worker) fail(op, path string, errno unix.Errno) {
	w.apply(w.visitor.Fail(&fs.PathError{Op: op, Path: path, Err: errno}))
}

func (w *worker) apply(v Verdict) {
	if v == Stop {
		w.pool.stop()
	}
}

package mounttest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FUSE is a small filesystem in memory whose server is the test, so that every call into it can be made to fail, to hang
// or to find the server dead. It speaks to /dev/fuse itself and needs no other program. The kernel keeps no answer: every
// look comes to the server.
//
//	func TestUsageOfAHungServer(t *testing.T) {
//		f := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"dir/file": "content"}})
//		f.Hang(mounttest.FUSEStatfs)
//		result := make(chan error, 1)
//		go func() { result <- measure(ctx, f.Path()) }()
//		f.Await(mounttest.FUSEStatfs) // the call is in the kernel now
//		cancel()
//		require.ErrorIs(t, <-result, mount.ErrUncertain)
//		f.Heal() // the call returns
//	}
//
// [FUSE.Fail] lets an operation fail with an errno of your choice (EIO, ESTALE, ENOSPC, EROFS), [FUSE.Hang] lets it wait
// until [FUSE.Heal], and [FUSE.Kill] is the death of the server: what is under way fails with ECONNABORTED and everything
// after it with ENOTCONN, while the mount stays. Without paths an operation is faulty everywhere; with paths, which are
// relative to the root of the filesystem ("." is the root itself, "dir/file"), only there: a lookup has the path that is
// looked for, every other operation that of what it is done to.
//
// A call that hangs in FUSE cannot be killed. The connection is therefore aborted when the test ends, however it ends, and
// shortly before its deadline (the flag -timeout), so that no process is left that cannot end. Do not touch the filesystem
// from a t.Cleanup that was registered before NewFUSE. Never hand one of its files to the process that a test must be able
// to kill.
//
// All methods may be called from several goroutines; Await only from one that may fail the test. It is there on Linux
// only; call it in files named *_linux_test.go of a package whose TestMain is [Main].
type FUSE struct {
	t      testing.TB
	path   string
	device *os.File
	ended  chan struct{} // closed when the server has ended

	mu      sync.Mutex
	tree    fuseTree
	rules   []fuseRule
	hung    []fuseRequest
	counts  map[FUSEOp]int
	changed chan struct{} // closed and replaced when a request has come
}

// FUSEOptions says what a [FUSE] is. The zero value is an empty filesystem in a temporary directory.
type FUSEOptions struct {
	// Target is the absolute path of the existing directory to mount at. Empty makes one beneath t.TempDir.
	Target string
	// Files are the files at the start: content by path relative to the root. A path that ends in "/" is a directory;
	// those above a file are made. Modes are 0755 and 0644, and everything belongs to user and group 0.
	Files map[string]string
	// ReadOnly mounts it read-only, so that the kernel refuses changes without asking the server.
	ReadOnly bool
}

// fuseRule is one fault. The first that fits is the one.
type fuseRule struct {
	op    FUSEOp
	paths []string // nil: everywhere
	errno syscall.Errno
	hang  bool
}

// FUSEAny is every operation that can be faulty. It leaves out those by which the kernel gives something back (forget,
// release) and those that no process waits for.
const FUSEAny FUSEOp = 0

// NewFUSE mounts a filesystem and serves it until the test ends. It skips the test where there is no FUSE.
func NewFUSE(t testing.TB, options FUSEOptions) *FUSE {
	t.Helper()
	RequireMounts(t)
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		missing(t, "/dev/fuse: "+err.Error())
	}
	f := &FUSE{
		t: t, path: options.Target, ended: make(chan struct{}),
		tree: newFUSETree(options.Files), counts: map[FUSEOp]int{}, changed: make(chan struct{}),
	}
	if f.path == "" {
		f.path = filepath.Join(t.TempDir(), "fuse")
		err = os.Mkdir(f.path, 0o755)
	}
	if err == nil {
		err = mountFUSE(device, f.path, options)
	}
	if err != nil {
		_ = unix.Close(device)
		t.Fatalf("mounting a FUSE filesystem: %v", err)
	}
	f.device = os.NewFile(uintptr(device), "/dev/fuse") // of the poller only now: before the mount it tells nothing
	f.abortInTime()
	go f.serve()
	t.Cleanup(f.close)
	if err := f.forgoPoll(); err != nil {
		t.Fatalf("the first call of a FUSE filesystem: %v", err)
	}
	return f
}

func mountFUSE(device int, target string, options FUSEOptions) error {
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if options.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	data := "fd=" + strconv.Itoa(device) + ",rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
	return unix.Mount("mounttest", target, "fuse", flags, data)
}

// abortInTime ends the connection before the testing package ends the process, which could not die with a call in it.
func (f *FUSE) abortInTime() {
	limited, ok := f.t.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return
	}
	if deadline, ok := limited.Deadline(); ok {
		const reserve = 5 * time.Second
		timer := time.AfterFunc(time.Until(deadline)-reserve, f.Kill)
		f.t.Cleanup(func() { timer.Stop() })
	}
}

// forgoPoll tells the kernel once that there is no poll here. The Go runtime polls each file that it opens, in a way in
// which no other goroutine may run on that processor; the server could be kept from answering.
func (f *FUSE) forgoPoll() error {
	fd, err := unix.Open(f.path+"/"+fusePollName, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFUSE(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func closeFUSE(fd int) { _ = unix.Close(fd) }

// Path is the mount point.
func (f *FUSE) Path() string { return f.path }

// Fail lets op fail with errno from now on, at the paths, or everywhere if there are none.
func (f *FUSE) Fail(op FUSEOp, errno syscall.Errno, paths ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = slices.Insert(f.rules, 0, fuseRule{op: op, paths: paths, errno: errno})
}

// Hang lets op wait from now on, at the paths, or everywhere if there are none, until Heal, Answer or Kill.
func (f *FUSE) Hang(op FUSEOp, paths ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = slices.Insert(f.rules, 0, fuseRule{op: op, paths: paths, hang: true})
}

// Answer ends what hangs with errno and leaves the faults as they are, so that the next call hangs again. With zero the
// calls are carried out.
func (f *FUSE) Answer(errno syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answerHung(errno)
}

func (f *FUSE) answerHung(errno syscall.Errno) {
	hung := f.hung
	f.hung = nil
	for _, r := range hung {
		if errno != 0 {
			f.reply(r, errno, nil)
			continue
		}
		f.carryOut(r)
	}
}

// Heal ends all faults, and carries out what hangs. It does not bring back a server that was killed.
func (f *FUSE) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
	f.answerHung(0)
}

// Kill is the death of the server, whose descriptor is closed. The mount stays until a test unmounts it.
func (f *FUSE) Kill() {
	_ = f.device.Close() // a second time it is closed already
	<-f.ended
}

// Await returns when a call of op hangs. It fails the test if none does within a minute.
func (f *FUSE) Await(op FUSEOp) {
	f.t.Helper()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	for {
		hung, changed := f.countHung(op)
		if hung > 0 {
			return
		}
		select {
		case <-changed:
		case <-f.ended:
			f.t.Fatal("the server has ended before a call hung in it")
		case <-patience.C:
			f.t.Fatal("no call hangs")
		}
	}
}

func (f *FUSE) countHung(op FUSEOp) (n int, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.hung {
		if op == FUSEAny || op == r.op {
			n++
		}
	}
	return n, f.changed
}

// Count returns how many requests of op have come to the server, faulty ones included, so that a test can prove that
// something is done without asking the server.
func (f *FUSE) Count(op FUSEOp) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for each, count := range f.counts {
		if op == each || op == FUSEAny && each.canFail() {
			n += count
		}
	}
	return n
}

// WriteFile changes a file behind the kernel's back, or makes it, with the directories above it, as another client of the
// same server would.
func (f *FUSE) WriteFile(name, content string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tree.put(name, content)
}

// Stat describes what the server has at the path, without asking the kernel: its mode and its owner are those that a
// change has really left. An error matches fs.ErrNotExist.
func (f *FUSE) Stat(name string) (FUSEStat, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.tree.find(name)
	if n == nil {
		return FUSEStat{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return FUSEStat{Mode: n.mode, UID: n.uid, GID: n.gid, Content: string(n.data)}, nil
}

// FUSEStat is what a [FUSE] has at a path.
type FUSEStat struct {
	// Mode is the type and the permissions as in stat(2).
	Mode uint32
	// UID and GID are the owner.
	UID, GID uint32
	// Content is that of a file, or what a symbolic link leads to.
	Content string
}

// close unmounts, and ends the server, which aborts what is still under way.
func (f *FUSE) close() {
	_ = unix.Unmount(f.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // the test may have taken it off
	f.Kill()
}

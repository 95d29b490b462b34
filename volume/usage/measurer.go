package usage

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
)

const (
	// defaultMaxAbandoned is Measurer.MaxAbandoned when it is zero.
	defaultMaxAbandoned = 64
	// grace is how long a caller waits for its call after its context has ended. A walk that does not hang ends well before
	// that, so it is not abandoned.
	grace = 25 * time.Millisecond
)

// Measurer measures trees and filesystems, and lists the calls that hang. The zero value is ready to use. Do not copy it. Its
// methods may be called from several goroutines at once. A program should have one Measurer: then each path has at most one
// abandoned call.
type Measurer struct {
	// MaxAbandoned is the number of abandoned calls at which every further call fails with [ErrStuck]. Zero means 64. Do not
	// change it after the first use. An abandoned walk may keep as many threads as it has workers.
	MaxAbandoned int

	walksOnly bool // does not read quotas

	once    sync.Once
	started *abandonable.Calls // by calls

	mu        sync.Mutex
	confirmed confirmedRoots
}

// Measure returns the disk usage of the tree at root, an absolute path. It does not follow root if that is a symbolic link. A
// root that is not a directory counts as one file. Below root, Measure follows no symbolic link and enters no mount.
//
// The walk makes about one system call for each file. It starts workers as needed: up to four for each processor, at least
// eight and at most sixteen, because a disk handles several requests in little more time than one. It stops soon after ctx
// has ended, with the error of ctx. If a system call does not return even then, Measure abandons it: the error has the methods
// Uncertain() bool and Done() <-chan struct{}. Until that call has ended, further calls for the root fail with an error that
// matches [ErrStuck]. Calls for the same root run one after the other.
//
// Measure returns the kernel's count for the project of root, and does not walk (see [Usage].ByQuota), if all of this holds:
// root has a project id that new files in it inherit; the directory above root does not have that id; the filesystem counts
// projects, and this process may read the count (CAP_SYS_ADMIN, Linux 5.14); the count was equal to the result of a walk at
// most 64 measurements ago. Links and renames cannot bring files of another project into such a directory (EXDEV). So the
// count stays right unless a process gives another project to a file in the tree, or this project to a file elsewhere. Only
// the owner of the file or CAP_FOWNER may do that, and not in a user namespace. The next walk then finds the difference.
// Unlike a walk, the count includes files that were deleted and are still open.
//
// If root does not exist, the error matches fs.ErrNotExist. A directory that cannot be read is an error, too, because the
// result would be too small. Every error is a [*fs.PathError] with the path, the error of ctx, or one of those above. On other
// systems than Linux, the error matches [errors.ErrUnsupported].
func (m *Measurer) Measure(ctx context.Context, root string) (Usage, error) {
	return call(ctx, m, root, func(ctx context.Context) (Usage, error) {
		if err := abandonable.Begin(ctx, "walk"); err != nil {
			return Usage{}, err
		}
		return m.measure(ctx, root)
	})
}

// FS returns the size and the usage of the filesystem at path, an absolute path. It follows symbolic links, as statfs(2) does.
//
// FS measures the filesystem that it has checked: it opens path once, without access to the filesystem (O_PATH), and uses that
// descriptor for the check against expect and for the measurement. If path leads to another filesystem than expected, the error
// is a [*WrongFilesystemError].
//
// The call never returns if the server is dead. If ctx ends first, the error has the methods Uncertain and Done. Until the call
// has ended, further calls for the path fail with an error that matches [ErrStuck]. Other errors are [*fs.PathError]s. On other
// systems than Linux, the error matches [errors.ErrUnsupported].
func (m *Measurer) FS(ctx context.Context, path string, expect Expect) (FSInfo, error) {
	return call(ctx, m, path, func(ctx context.Context) (FSInfo, error) { return filesystem(ctx, path, expect) })
}

// Abandoned lists the abandoned calls that have not ended, sorted by path. Each keeps a thread of this process.
func (m *Measurer) Abandoned() []AbandonedCall {
	var all []AbandonedCall
	for _, c := range m.calls().Abandoned() {
		all = append(all, AbandonedCall{Call: c.Name, Path: c.Path})
	}
	return all
}

// call runs op in a goroutine of its own and waits for it or for ctx, whichever ends first.
func call[T any](ctx context.Context, m *Measurer, path string, op func(context.Context) (T, error)) (T, error) {
	return abandonable.Value(ctx, m.calls(), abandonable.Key{Look: true, Path: filepath.Clean(path)}, op)
}

// calls returns the runner of the calls.
func (m *Measurer) calls() *abandonable.Calls {
	m.once.Do(func() {
		options := abandonable.Options{Max: m.MaxAbandoned, Grace: grace, Stuck: ErrStuck}
		if options.Max <= 0 {
			options.Max = defaultMaxAbandoned
		}
		m.started = abandonable.New(options)
	})
	return m.started
}

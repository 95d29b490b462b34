package usage

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
)

const (
	// defaultMaxLost is Meter.MaxAbandoned when it is zero.
	defaultMaxLost = 64
	// grace is how long a caller whose context has ended waits for its call: a walk that nothing holds up ends well
	// before that, and is then not abandoned.
	grace = 25 * time.Millisecond
)

// Meter measures trees and filesystems, and keeps account of the calls that hang. The zero value is ready to use; it must
// not be copied. Its methods may be called from several goroutines. A program needs one, so that no path has more than
// one abandoned call.
type Meter struct {
	// MaxAbandoned is how many calls may be abandoned before every further one fails with [ErrStuck]. Zero means 64. It must
	// not change after the first use. A lost walk may hold as many threads as it has workers.
	MaxAbandoned int

	walksOnly bool // whether quotas are not asked for

	once    sync.Once
	started *abandonable.Calls // by calls

	mu        sync.Mutex
	confirmed confirmedRoots
}

// Measure returns what the tree at root, an absolute path, occupies. root itself is not followed when it is a symbolic
// link; a root that is not a directory counts as the one file that it is. Below root no symbolic link is followed and
// no mount is entered.
//
// The walk makes about one system call per file, by workers that are started as there is work for them: up to four for
// each processor, at least eight and at most sixteen, because a disk answers several questions in little more time than
// one. It stops soon after ctx has ended, with ctx's error. When a system call does not return even then, it is left
// behind: the error has the methods Uncertain() bool and Done() <-chan struct{}. While it has not ended, further calls for this root fail with an error that matches
// [ErrStuck]. Callers that measure one root at the same time do so one after the other.
//
// The kernel's count for the root's project is returned instead of a walk (see [Usage].ByQuota) while all this is so:
// root has a project id that is inherited by what is made in it, the directory above does not have the same, the
// filesystem counts projects and this process may ask it (CAP_SYS_ADMIN, Linux 5.14), and the count agreed exactly with
// a walk at most 64 measurements ago. Links and renames cannot bring files of another project into such a
// directory (EXDEV), so the count stays that of the tree as long as no process gives another project to a file in it, or
// this one to a file elsewhere, which takes the owner of a file or CAP_FOWNER outside of any user namespace. What that
// would falsify is found by the next walk. Unlike a walk, the count has what was deleted and is still open.
//
// A root that does not exist is an error that matches fs.ErrNotExist. A directory that may not be read is an error too,
// since the answer would be too small. Every error is a [*fs.PathError] with the path in it, that of ctx, or one of
// those above. Elsewhere than on Linux the error matches [errors.ErrUnsupported].
func (m *Meter) Measure(ctx context.Context, root string) (Usage, error) {
	return call(ctx, m, root, func(ctx context.Context) (Usage, error) {
		if err := abandonable.Begin(ctx, "walk"); err != nil {
			return Usage{}, err
		}
		return m.measure(ctx, root)
	})
}

// FS returns how full the filesystem at path, an absolute path, is. Symbolic links are followed, as statfs(2) does.
//
// What is measured is what was checked: path is opened once, without asking the filesystem (O_PATH), and both the check
// against expect and the question are about that descriptor. A path that leads elsewhere than expected is a
// [*WrongFilesystemError].
//
// A server that is dead never answers. When ctx ends first the error has the methods Uncertain and Done, and further calls for this path
// fail with an error that matches [ErrStuck] until that call has ended. Other errors are [*fs.PathError]s. Elsewhere than
// on Linux the error matches [errors.ErrUnsupported].
func (m *Meter) FS(ctx context.Context, path string, expect Expect) (FSInfo, error) {
	return call(ctx, m, path, func(ctx context.Context) (FSInfo, error) { return filesystem(ctx, path, expect) })
}

// Abandoned lists the calls that were abandoned and have not ended, sorted by path. Each holds a thread of this process.
func (m *Meter) Abandoned() []AbandonedCall {
	var all []AbandonedCall
	for _, c := range m.calls().Abandoned() {
		all = append(all, AbandonedCall{Call: c.Name, Path: c.Path})
	}
	return all
}

// call runs op in a goroutine of its own and waits for it or for ctx, whichever ends first.
func call[T any](ctx context.Context, m *Meter, path string, op func(context.Context) (T, error)) (T, error) {
	return abandonable.Value(ctx, m.calls(), abandonable.Key{Look: true, Path: filepath.Clean(path)}, op)
}

// calls returns what keeps account of the calls.
func (m *Meter) calls() *abandonable.Calls {
	m.once.Do(func() {
		options := abandonable.Options{Max: m.MaxAbandoned, Grace: grace, Stuck: ErrStuck}
		if options.Max <= 0 {
			options.Max = defaultMaxLost
		}
		m.started = abandonable.New(options)
	})
	return m.started
}

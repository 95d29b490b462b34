package usage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
)

const (
	// defaultMaxLost is Meter.MaxLost when it is zero.
	defaultMaxLost = 64
	// grace is how long a caller whose context has ended waits for its call: a walk that nothing holds up ends well
	// before that, and is then not left behind.
	grace = 25 * time.Millisecond
)

// Meter measures trees and filesystems, and keeps account of the calls that hang. The zero value is ready to use; it must
// not be copied. Its methods may be called from several goroutines. A program needs one, so that no path has more than
// one lost call.
type Meter struct {
	// MaxLost is how many calls may be left behind before every further one fails with [ErrStuck]. Zero means 64. A lost
	// walk may hold as many threads as it has workers.
	MaxLost int

	walksOnly bool // whether quotas are not asked for

	mu    sync.Mutex
	slots map[string]*slot
	lost  int // slots whose caller has left
	trust trust
}

// Measure returns what the tree at root, an absolute path, occupies. root itself is not followed when it is a symbolic
// link; a root that is not a directory counts as the one file that it is. Below root no symbolic link is followed and
// no mount is entered.
//
// The walk makes about one system call per file, by as many workers as there are processors, and more while the disk is
// what it waits for. It stops soon after ctx has ended, with ctx's error. When a system call does not return even then,
// it is left behind: the error is a [*LostError]. While it has not ended, further calls for this root fail with an error
// that matches [ErrStuck]. Callers that measure one root at the same time do so one after the other.
//
// The kernel's count for the root's project is returned instead of a walk (see [Usage].ByQuota) while all this is so:
// root has a project id that is inherited by what is made in it, the directory above does not have the same, the
// filesystem counts projects and this process may ask it (CAP_SYS_ADMIN, Linux 5.14), and the count agreed exactly with
// a walk at most [quotaTrust] measurements ago. Links and renames cannot bring files of another project into such a
// directory (EXDEV), so the count stays that of the tree as long as nobody gives another project to a file in it, or
// this one to a file elsewhere, which takes the owner of a file or CAP_FOWNER outside of any user namespace. What that
// would falsify is found by the next walk. Unlike a walk, the count has what was deleted and is still open.
//
// A root that does not exist is an error that matches fs.ErrNotExist. A directory that may not be read is an error too,
// since the answer would be too small. Every error is a [*fs.PathError] with the path in it, that of ctx, or one of
// those above. Elsewhere than on Linux the error matches [errors.ErrUnsupported].
func (m *Meter) Measure(ctx context.Context, root string) (Usage, error) {
	return call(ctx, m, callName{"walk", root}, func(ctx context.Context) (Usage, error) { return m.measure(ctx, root) })
}

// FS returns how full the filesystem at path, an absolute path, is. Symbolic links are followed, as statfs(2) does.
//
// What is measured is what was checked: path is opened once, without asking the filesystem (O_PATH), and both the check
// against expect and the question are about that descriptor. A path that leads elsewhere than expected is a
// [*WrongFilesystemError].
//
// A server that is dead never answers. When ctx ends first the error is a [*LostError], and further calls for this path
// fail with an error that matches [ErrStuck] until that call has ended. Other errors are [*fs.PathError]s. Elsewhere than
// on Linux the error matches [errors.ErrUnsupported].
func (m *Meter) FS(ctx context.Context, path string, expect Expect) (FSInfo, error) {
	return call(ctx, m, callName{"statfs", path}, func(context.Context) (FSInfo, error) {
		return filesystem(path, expect)
	})
}

// Lost lists the calls that were left behind and have not ended, sorted by path. Each holds a thread of this process.
func (m *Meter) Lost() []LostCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []LostCall
	for path, s := range m.slots {
		if s.isLost {
			all = append(all, LostCall{Call: s.call, Path: path})
		}
	}
	slices.SortFunc(all, func(a, b LostCall) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

// callName says what is called on which path.
type callName struct{ call, path string }

// slot is one call that holds its path.
type slot struct {
	call   string
	ended  chan struct{} // closed when the call has returned
	gone   chan struct{} // closed when its caller has left
	isLost bool          // guarded by Meter.mu; whether gone is closed
}

// call runs op in a goroutine of its own and waits for it or for ctx, whichever ends first. op gets a ctx that ends with
// the caller's.
func call[T any](ctx context.Context, m *Meter, name callName, op func(context.Context) (T, error)) (T, error) {
	var none T
	s, err := m.acquire(ctx, name)
	if err != nil {
		return none, err
	}
	type answer struct {
		value T
		err   error
	}
	result := make(chan answer, 1)
	go func() {
		value, err := op(ctx)
		m.release(name, s)
		result <- answer{value, err}
	}()
	select {
	case a := <-result:
		return a.value, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-result:
		return a.value, a.err
	case <-time.After(grace):
	}
	if lost := m.leave(ctx, name, s); lost != nil {
		return none, lost
	}
	a := <-result
	return a.value, a.err
}

// acquire takes the slot of a path. It waits while a call holds it whose caller still waits.
func (m *Meter) acquire(ctx context.Context, name callName) (*slot, error) {
	for {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s of %q was not begun: %w: %w", name.call, name.path, outcome.ErrTransient, ctx.Err())
		}
		mine, other, err := m.tryAcquire(name)
		if err != nil || mine != nil {
			return mine, err
		}
		select {
		case <-other.ended:
		case <-other.gone:
		case <-ctx.Done():
		}
	}
}

func (m *Meter) tryAcquire(name callName) (mine, other *slot, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.slots[name.path]; s != nil {
		if s.isLost {
			return nil, nil, fmt.Errorf("%s of %q was not begun: a %s of it has not returned: %w: %w",
				name.call, name.path, s.call, ErrStuck, outcome.ErrTransient)
		}
		return nil, s, nil
	}
	if m.lost >= cmp.Or(m.MaxLost, defaultMaxLost) {
		return nil, nil, fmt.Errorf("%s of %q was not begun: %d calls have not returned: %w: %w",
			name.call, name.path, m.lost, ErrStuck, outcome.ErrTransient)
	}
	s := &slot{call: name.call, ended: make(chan struct{}), gone: make(chan struct{})}
	if m.slots == nil {
		m.slots = map[string]*slot{}
	}
	m.slots[name.path] = s
	return s, nil, nil
}

// leave marks a call as lost. It returns nil when the call has just ended.
func (m *Meter) leave(ctx context.Context, name callName, s *slot) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.slots[name.path] != s {
		return nil
	}
	s.isLost = true
	m.lost++
	close(s.gone)
	return &LostError{Call: name.call, Path: name.path, cause: ctx.Err(), done: s.ended}
}

func (m *Meter) release(name callName, s *slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.slots, name.path)
	if s.isLost {
		m.lost--
	}
	close(s.ended)
}

package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/volumekit/volumekit/mount"
)

// The methods of a [Mounter] that the log records, and for which faults can be injected.
const (
	MethodMount        Method = "Mount"
	MethodUnmount      Method = "Unmount"
	MethodRemoveTarget Method = "RemoveTarget"
	MethodIsMountPoint Method = "IsMountPoint"
	MethodLookup       Method = "Lookup"
	MethodList         Method = "List"
	MethodGetMountRefs Method = "GetMountRefs"
	// MethodCheckIDMappings is [Mounter.CheckIDMappings].
	MethodCheckIDMappings Method = "CheckIDMappings"
)

// MounterOptions describes the machine of a [Mounter]. The zero value is a Linux machine with the usual filesystems.
type MounterOptions struct {
	// FSTypes are the types of filesystems that the kernel knows beside tmpfs. Nil means ext2, ext3, ext4, xfs, btrfs, vfat,
	// nfs and nfs4. All mounts of one source show the same files, also after the source was unmounted and mounted again.
	FSTypes []string
	// NoIDMappings are the types of filesystems that cannot have id-mapped mounts. Nil means nfs and nfs4.
	NoIDMappings []string
	// SELinux says that the machine runs SELinux: a filesystem may then be mounted with a context.
	SELinux bool
}

// Mounter is a [mount.Interface] in memory: a mount table, and a tree of files for each filesystem. It passes the suite of
// mount/mounttest like the real mounter: bind mounts show the same files, read-only mounts refuse writes, stacked mounts hide each
// other, busy mounts stay. Its paths have slashes on every platform. It changes nothing on the real machine. It starts with an empty
// root filesystem, whose mount is private.
//
// Mounts and unmounts propagate as described in mount_namespaces(7): to the peers of a shared mount and to their slaves. The table
// has the optional fields of the kernel except "propagate_from": that field refers to another mount namespace or root directory, and
// a Mounter has one of each. The number of a peer group is never used again. Where the kernel's ways to mount differ, Mounter does
// what open_tree(2) and move_mount(2) do: a bind mount leaves the peer group of its source before it is attached. Its copies on the
// peers of the target are therefore in a peer group of their own.
//
// Its methods may be called from several goroutines at once. The methods for files have the names and the errors of package os.
type Mounter struct {
	log callLog[MountCall, *MountCall]

	mu        sync.Mutex
	namespace *namespace
	pending   map[string]*pending
}

var _ mount.Interface = (*Mounter)(nil)

// NewMounter returns a Mounter with the given options. Only the root is mounted.
func NewMounter(options MounterOptions) *Mounter {
	return &Mounter{namespace: newNamespace(options), pending: map[string]*pending{}}
}

// Inject queues faults for the next calls of method, after those that are queued already. A hanging call keeps its path like a call
// that hangs in the kernel. If its ctx ends, the caller gets a *mount.AbandonedError, and other calls that change the same path fail
// with mount.ErrStuck. When the test closes the fault's channel, the call continues as the fault says. This holds for every hang,
// Uninterruptible or not.
func (m *Mounter) Inject(method Method, faults ...Fault) { m.log.inject(method, faults) }

// Calls returns a copy of the log, in the order in which the calls began.
func (m *Mounter) Calls() []MountCall {
	calls := m.log.snapshot()
	for i := range calls {
		calls[i].Options = slices.Clone(calls[i].Options)
	}
	return calls
}

// AwaitCalls returns when at least n calls of method have begun since the log was emptied. It returns an error if ctx ends first. A
// test that uses it needs no sleep.
func (m *Mounter) AwaitCalls(ctx context.Context, method Method, n int) error {
	return m.log.await(ctx, method, n)
}

// ForgetCalls empties the log, so a test sees only later calls.
func (m *Mounter) ForgetCalls() { m.log.forget() }

// Mount implements mount.Interface.
func (m *Mounter) Mount(ctx context.Context, request mount.Request) error {
	call := MountCall{
		Method: MethodMount, Source: request.Source, Path: request.Target,
		FSType: request.FSType, Options: slices.Concat(request.UserOptions, request.Options),
	}
	plan, err := request.Plan()
	if err != nil {
		return m.log.refuse(call, err)
	}
	public := plan.Data[:len(plan.Data)-len(request.Sensitive)]
	return m.change(ctx, call, plan.Target, func() error { return m.namespace.mount(plan, public) })
}

// Unmount implements mount.Interface.
func (m *Mounter) Unmount(ctx context.Context, target string, options mount.UnmountOptions) error {
	call := MountCall{Method: MethodUnmount, Path: target}
	name, err := cleanName(target)
	if err != nil {
		return m.log.refuse(call, err)
	}
	return m.change(ctx, call, name, func() error { return m.namespace.unmount(name, options) })
}

// RemoveTarget implements mount.Interface.
func (m *Mounter) RemoveTarget(ctx context.Context, name string) error {
	call := MountCall{Method: MethodRemoveTarget, Path: name}
	clean, err := cleanName(name)
	if err != nil {
		return m.log.refuse(call, err)
	}
	return m.change(ctx, call, clean, func() error { return m.namespace.removeTarget(clean) })
}

// IsMountPoint implements mount.Interface.
func (m *Mounter) IsMountPoint(ctx context.Context, name string) (is bool, err error) {
	err = m.look(ctx, MountCall{Method: MethodIsMountPoint, Path: name}, func() error {
		is, err = m.namespace.isMountPoint(name)
		return err
	})
	return is && err == nil, err
}

// Lookup implements mount.Interface.
func (m *Mounter) Lookup(ctx context.Context, name string) (found mount.MountPoint, err error) {
	err = m.look(ctx, MountCall{Method: MethodLookup, Path: name}, func() error {
		found, err = m.namespace.lookup(name)
		return err
	})
	if err != nil {
		return mount.MountPoint{}, err
	}
	return found, nil
}

// List implements mount.Interface.
func (m *Mounter) List(ctx context.Context) (table []mount.MountPoint, err error) {
	err = m.look(ctx, MountCall{Method: MethodList}, func() error {
		for _, mp := range m.namespace.mounts {
			table = append(table, mp.line())
		}
		return nil
	})
	return table, err
}

// GetMountRefs implements mount.Interface.
func (m *Mounter) GetMountRefs(ctx context.Context, name string) (paths []string, err error) {
	err = m.look(ctx, MountCall{Method: MethodGetMountRefs, Path: name}, func() error {
		paths, err = m.namespace.refs(name)
		return err
	})
	return paths, err
}

// CheckIDMappings reports whether source can be mounted with the mappings, like the method of mount.Mounter. The files of a Mounter
// have no owners: the only effect of mappings is the option "idmapped" in the mount table.
func (m *Mounter) CheckIDMappings(ctx context.Context, source string, mappings mount.IDMappings) error {
	call := MountCall{Method: MethodCheckIDMappings, Path: source}
	name, err := cleanName(source)
	if err == nil {
		err = mappings.Validate()
	}
	if err != nil {
		return m.log.refuse(call, err)
	}
	return m.look(ctx, call, func() error {
		plan := mount.Plan{Source: name, Bind: true, Recursive: true, IDMappings: mappings}
		shown, err := m.namespace.shown(plan, nil)
		if err != nil {
			return err
		}
		return m.namespace.checkIDMappings(shown, plan)
	})
}

// look makes a call without an effect.
func (m *Mounter) look(ctx context.Context, call MountCall, work func() error) (err error) {
	logged, fault, faulty := m.log.begin(call)
	defer func() { m.log.end(logged, err) }()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%q was not looked at: %w: %w", call.Path, mount.ErrTransient, err)
	}
	locked := func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		return work()
	}
	if faulty && fault.Until != nil {
		select {
		case <-fault.Until:
		case <-ctx.Done():
			return mount.NewAbandonedError(string(call.Method), call.Path, ctx.Err(), fault.Until)
		}
		fault.Until = nil
	}
	if faulty {
		return fault.run(ctx, locked)
	}
	return locked()
}

// pending is a running call that changes a path. Other such calls wait for it.
type pending struct {
	method Method
	ended  chan struct{}
	left   chan struct{} // closed when the caller has abandoned the call
}

// change makes a call with an effect. No other such call runs at its path meanwhile.
func (m *Mounter) change(ctx context.Context, call MountCall, name string, work func() error) (err error) {
	logged, fault, faulty := m.log.begin(call)
	defer func() { m.log.end(logged, err) }()
	p, err := m.acquire(ctx, call.Method, name)
	if err != nil {
		return err
	}
	locked := func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		return work()
	}
	if faulty && fault.Until != nil {
		return m.hang(ctx, name, p, fault, locked)
	}
	defer m.release(name, p)
	if faulty {
		return fault.run(ctx, locked)
	}
	return locked()
}

// hang waits for the end of the fault, and then makes the call. If ctx ends first, it abandons the call.
func (m *Mounter) hang(ctx context.Context, name string, p *pending, fault Fault, work func() error) error {
	result := make(chan error, 1)
	until := fault.Until
	fault.Until = nil
	go func() { // ends when the test closes the fault's channel
		defer m.release(name, p)
		<-until
		result <- fault.run(context.WithoutCancel(ctx), work)
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		close(p.left)
		return mount.NewAbandonedError(string(p.method), name, ctx.Err(), p.ended)
	}
}

// acquire waits until no other call changes the path. It does not wait for an abandoned call: then it returns an error.
func (m *Mounter) acquire(ctx context.Context, method Method, name string) (*pending, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%q was not touched: %w: %w", name, mount.ErrTransient, err)
		}
		m.mu.Lock()
		other := m.pending[name]
		if other == nil {
			p := &pending{method: method, ended: make(chan struct{}), left: make(chan struct{})}
			m.pending[name] = p
			m.mu.Unlock()
			return p, nil
		}
		m.mu.Unlock()
		select {
		case <-other.ended:
		case <-other.left:
			return nil, fmt.Errorf("%q: %s has not returned: %w: %w", name, other.method, mount.ErrStuck, mount.ErrTransient)
		case <-ctx.Done():
		}
	}
}

func (m *Mounter) release(name string, p *pending) {
	m.mu.Lock()
	delete(m.pending, name)
	m.mu.Unlock()
	close(p.ended)
}

// Abandoned returns the sorted paths of the abandoned calls that have not ended.
func (m *Mounter) Abandoned() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	lost := slices.Sorted(maps.Keys(m.pending))
	return slices.DeleteFunc(lost, func(name string) bool {
		select {
		case <-m.pending[name].left:
			return false
		default:
			return true
		}
	})
}

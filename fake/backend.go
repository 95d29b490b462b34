package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// Backend is the storage that one or more [Plugin] values manage: volumes by handle, with their sizes and the nodes that
// they are attached to. It is safe for concurrent use and lives as long as the test does.
type Backend struct {
	mu      sync.Mutex
	volumes map[string]*backendVolume
	// tokens are the newest fencing tokens by handle, also of volumes that were deleted.
	tokens map[string]volume.FencingToken
	// snapshots are the snapshots by handle, groups the handles of those that were made together, by that of their group.
	snapshots map[string]*backendSnapshot
	groups    map[string][]string
}

type backendVolume struct {
	size  int64
	nodes map[types.NodeName]bool
	grown map[types.NodeName]int64 // what NodeExpand made of it; nil until then
	// content is what a copy of another volume is made with, by relative paths; nil for any other.
	content map[string][]byte
	// attributes are what ModifyVolume gave the volume; nil until then.
	attributes map[string]string
}

// NewBackend returns a backend without volumes.
func NewBackend() *Backend {
	return &Backend{
		volumes: map[string]*backendVolume{}, tokens: map[string]volume.FencingToken{},
		snapshots: map[string]*backendSnapshot{}, groups: map[string][]string{},
	}
}

// admit refuses a call for a volume whose fencing token is older than one that came before. A call without a token is admitted.
// The caller holds the lock until it has changed the volume.
func (b *Backend) admit(ctx context.Context, handle string) error {
	token, ok := volume.FencingTokenFrom(ctx)
	if !ok {
		return nil
	}
	if newest, seen := b.tokens[handle]; seen {
		if err := token.Check(newest); err != nil {
			return fmt.Errorf("volume %q: %w", handle, err)
		}
	}
	b.tokens[handle] = token
	return nil
}

// Handles returns the handles of all volumes, sorted.
func (b *Backend) Handles() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.volumes))
}

// Size returns the size of a volume in bytes, and false when there is no such volume.
func (b *Backend) Size(handle string) (int64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.volumes[handle]
	if !ok {
		return 0, false
	}
	return v.size, true
}

// SizeOn returns the size in bytes to which a volume was grown on a node, and false when it was not.
func (b *Backend) SizeOn(handle string, node types.NodeName) (int64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.volumes[handle]
	if !ok {
		return 0, false
	}
	size, ok := v.grown[node]
	return size, ok
}

// growOn grows what a node has of a volume, which cannot be more than the storage behind it.
func (b *Backend) growOn(handle string, node types.NodeName, size int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.ensure(handle)
	if size > v.size {
		return fmt.Errorf("volume %q has %d bytes and cannot have %d on node %q: expand its storage first", handle, v.size, size, node)
	}
	if v.grown == nil {
		v.grown = map[types.NodeName]int64{}
	}
	v.grown[node] = max(v.grown[node], size)
	return nil
}

// Nodes returns the nodes that a volume is attached to, sorted.
func (b *Backend) Nodes(handle string) []types.NodeName {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.volumes[handle]
	if !ok {
		return nil
	}
	return slices.Sorted(maps.Keys(v.nodes))
}

// Create makes a volume of size bytes. It succeeds when a volume of that handle and size exists. When its size is another, the error
// matches [volume.ErrUncertain]: an earlier attempt may have made it.
func (b *Backend) Create(handle string, size int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, ok := b.volumes[handle]; ok && v.size != size {
		return existsWith(v.size, handle, size)
	}
	b.ensure(handle).size = size
	return nil
}

func existsWith(has int64, handle string, size int64) error {
	return volume.Uncertain(fmt.Errorf("volume %q exists with %d bytes instead of %d: delete it or use another name", handle, has, size))
}

// ensure returns the volume and makes it where it is not there. The caller holds the lock.
func (b *Backend) ensure(handle string) *backendVolume {
	v, ok := b.volumes[handle]
	if !ok {
		v = &backendVolume{nodes: map[types.NodeName]bool{}}
		b.volumes[handle] = v
	}
	return v
}

// findCopy sets size to that of a volume that exists, and is at least as large.
func (b *Backend) findCopy(handle string, size *resource.Quantity) error {
	has, ok := b.Size(handle)
	if !ok || has < size.Value() {
		return fmt.Errorf("volume %q: its source is gone, and no volume of %d bytes was made before: %w", handle, size.Value(), volume.ErrInfeasible)
	}
	*size = *resource.NewQuantity(has, resource.BinarySI)
	return nil
}

func (b *Backend) has(handle string) bool {
	_, ok := b.Size(handle)
	return ok
}

// remove deletes a volume that is attached nowhere.
func (b *Backend) remove(handle string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.volumes[handle]
	if ok && len(v.nodes) > 0 {
		return fmt.Errorf("volume %q is attached to %v: detach it first: %w",
			handle, slices.Sorted(maps.Keys(v.nodes)), volume.ErrInUse)
	}
	delete(b.volumes, handle)
	return nil
}

// attach attaches a volume, which exists from then on if it did not. An exclusive volume goes to one node only: the error
// says which has it.
func (b *Backend) attach(ctx context.Context, info volumeInfo, node types.NodeName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.admit(ctx, info.handle); err != nil {
		return err
	}
	v := b.ensure(info.handle)
	if info.exclusive && len(v.nodes) > 0 && !v.nodes[node] {
		return &volume.DanglingAttachError{
			CurrentNode: slices.Sorted(maps.Keys(v.nodes))[0], DevicePath: devicePath(info.handle),
			Err: fmt.Errorf("volume %q: its access modes allow one node only: detach it there first: %w", info.handle, volume.ErrInUse),
		}
	}
	v.nodes[node] = true
	return nil
}

func (b *Backend) detach(ctx context.Context, handle string, node types.NodeName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.admit(ctx, handle); err != nil {
		return err
	}
	if v, ok := b.volumes[handle]; ok {
		delete(v.nodes, node)
	}
	return nil
}

func (b *Backend) attached(handle string, node types.NodeName) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.volumes[handle]
	return ok && v.nodes[node]
}

// grow makes a volume at least size bytes large and returns its size.
func (b *Backend) grow(ctx context.Context, handle string, size int64) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.admit(ctx, handle); err != nil {
		return 0, err
	}
	v := b.ensure(handle)
	v.size = max(v.size, size)
	return v.size, nil
}

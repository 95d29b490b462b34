// Package orphans lists what lies under the root of all volumes and is on no record: mounts, directories, loop devices, and the
// directories of pods in which no volume is left. It removes what is proven to be the manager's, where that is asked for.
package orphans

import (
	"context"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// Options is what a [List] needs. All functions are called without a lock.
type Options struct {
	// Plugins are those of the manager.
	Plugins *volume.VolumePluginMgr
	// Logger gets what is removed, and what fails.
	Logger *slog.Logger
	// Mounter takes mounts off, if it can.
	Mounter operationexecutor.MountPoints
	// BlockMapper unmaps devices.
	BlockMapper operationexecutor.BlockMapper
	// Loops are the loop devices; nil: they are not looked at.
	Loops Loops
	// Records are what is on record; nil when nothing is recorded.
	Records Records
	// Table looks mounts up; nil: they are not looked at.
	Table Table
	// CheckRoot returns an error if the directory above all volumes is not the manager's any more. Nothing is removed then.
	CheckRoot func(ctx context.Context) error
	// Lookup returns the uppermost mount at a path, in a bounded time.
	Lookup func(ctx context.Context, path string) (mount.MountPoint, error)
	// IsMount reports whether a mount of a volume is at a path, IsBusy whether an operation is about to change it.
	IsMount, IsBusy func(path string) bool
	// IsKnown reports whether a pod is on this node, HasVolumes whether it may have volumes.
	IsKnown, HasVolumes func(volume.UniquePodName) bool
	// Notify wakes the waiters for a pod. InUseChanged is called when the set of volumes in use may have changed.
	Notify       func(volume.UniquePodName)
	InUseChanged func()
}

// Records is what is on record.
type Records interface {
	// Paths returns every path on record.
	Paths() map[string]struct{}
	// IsRecorded reports whether a path, or one beneath it, is on record.
	IsRecorded(path string) bool
	// Accounts reports whether a device is one on record, or may be.
	Accounts(device loop.Device) bool
	// Hold lets no intent for a volume be recorded until release.
	Hold(ctx context.Context, name v1.UniqueVolumeName) (release func(), ok bool)
	// Claim claims a path for a removal when isFree says that it is on no record.
	Claim(path string, isFree func() bool) (release func(), ok bool)
	// IsRemoving reports whether what lies at a path is being removed.
	IsRemoving(path string) bool
}

// Loops are the loop devices of the machine.
type Loops interface {
	// Devices returns every loop device that has a file.
	Devices(ctx context.Context) ([]loop.Device, error)
	// Detach detaches a device that is not in exclusive use.
	Detach(ctx context.Context, device loop.Device) error
}

// Table looks mounts up.
type Table interface {
	// Lookup returns the uppermost mount at a path.
	Lookup(ctx context.Context, path string) (mount.MountPoint, error)
}

// List holds the orphans that were found, looks for them, and removes them. Make it with [New].
type List struct {
	options Options

	mu sync.Mutex
	// all is replaced, never changed. looked says that orphans were looked for.
	all    []Orphan
	looked bool
}

// New returns a list without orphans. It does no I/O.
func New(o Options) *List { return &List{options: o} }

// All returns the orphans that were found.
func (l *List) All() []Orphan {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// HasLooked reports whether orphans were looked for.
func (l *List) HasLooked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.looked
}

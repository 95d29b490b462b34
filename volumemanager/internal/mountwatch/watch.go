// Package mountwatch follows the mounts of volumes. It records each mount when it is made, keeps teardowns from taking off
// foreign mounts, notices changes that others make to the mounts, checks their filesystems, and takes off a mount whose
// teardown hangs.
package mountwatch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// kernelMounts holds the methods that the watch uses. A mounter such as *mount.Mounter has all of them; with any other
// mounter the watch uses none.
type kernelMounts interface {
	mountLooker
	mountWatcher
	mountEnder
}

type mountLooker interface {
	Lookup(ctx context.Context, path string) (mount.MountPoint, error)
	LookupID(ctx context.Context, uniqueID uint64) (mount.MountPoint, error)
	List(ctx context.Context) ([]mount.MountPoint, error)
}

type mountWatcher interface {
	Watch(ctx context.Context, changed func(mount.TableChange)) error
}

type mountEnder interface {
	SyncFS(ctx context.Context, target string) error
	UnmountHung(ctx context.Context, target string, options mount.UnmountOptions) error
}

var _ kernelMounts = (*mount.Mounter)(nil)

// Options is what a [Watch] needs. All functions are called without a lock.
type Options struct {
	// Mounter is the mounter of the program. The watch uses it only if it has the methods of a *mount.Mounter.
	Mounter operationexecutor.MountPoints
	// Host has the paths of volumes.
	Host volume.VolumeHost
	// CheckRoot returns an error if the directory above all volumes is not the manager's any more.
	CheckRoot func(ctx context.Context) error
	// Logger logs failures.
	Logger *slog.Logger
	// Health gets the conditions of volumes.
	Health *health.Table
	// FilesystemCheckInterval is the time between two checks of a filesystem. Zero or less turns the checks off.
	FilesystemCheckInterval time.Duration
	// HungUnmount says what the watch does about a mount whose teardown hangs.
	HungUnmount HungUnmount
	// Records says that the manager keeps records. A mount without a record is then an orphan.
	Records bool
	// Orphans gets the mounts that have no record.
	Orphans Orphans
	// Hung returns the plugin calls that hang.
	Hung func() []operationexecutor.HungCall
	// MarkUncertain marks a certain set-up or staging as uncertain, and reports whether it did.
	MarkUncertain func(podvolume.Key) bool
	// Plan plans a volume again. Retry does so at once, without the backoff of earlier failures.
	Plan, Retry func(podvolume.Key)
	// Probe checks whether the server or device of a volume still answers.
	Probe func(podvolume.Key)
	// Released is called when a mount has gone while its teardown hangs.
	Released func(podvolume.Key)
}

// Orphans examines mounts that are not known.
type Orphans interface {
	// MayBe reports whether a path lies where volumes are mounted.
	MayBe(path string) bool
	// Examine checks what is mounted at a path that is not known.
	Examine(ctx context.Context, path string)
	// ExamineUnknown checks the paths of a mount table, and the orphans that are missing from it.
	ExamineUnknown(ctx context.Context, at map[string]int)
	// PathsOf returns the paths of the orphans that have one of these unique mount ids.
	PathsOf(ids []uint64) []string
	// Changed is called when an orphan may be gone.
	Changed()
	// Kept is called after a volume was removed from a path. removed says that the directory is gone, too.
	Kept(path string, pod types.UID, removed bool)
}

// Watch follows the mounts of volumes, and notices changes that others make to them. Make it with [New].
type Watch struct {
	options Options
	// kernel is nil if the mounter cannot list mounts.
	kernel kernelMounts

	// mounts are the mounts that are ours for certain. suspects queues the paths that have to be checked.
	mounts      mounts
	suspects    *workqueue.Queue[string]
	filesystems filesystemChecks
	hung        hungTeardowns
	strays      strayFiles
}

// New returns a watch that knows no mounts. It starts no goroutine.
func New(o Options) *Watch {
	w := &Watch{options: o, suspects: workqueue.New[string](), strays: newStrayFiles()}
	w.kernel, _ = o.Mounter.(kernelMounts)
	w.filesystems = filesystemChecks{options: o, kernel: w.kernel, mounts: &w.mounts, suspects: w.suspects, due: workqueue.New[filesystem]()}
	w.hung = hungTeardowns{options: o, kernel: w.kernel, mounts: &w.mounts, due: workqueue.New[podvolume.Key]()}
	return w
}

// IsKernel reports whether a mounter can list mounts, as a *mount.Mounter does.
func IsKernel(mounter operationexecutor.MountPoints) bool {
	_, ok := mounter.(kernelMounts)
	return ok
}

// Run starts all goroutines. They end with ctx. If the mounter cannot list mounts there are none.
func (w *Watch) Run(ctx context.Context, wg *sync.WaitGroup) {
	if w.kernel == nil {
		return
	}
	wg.Go(func() { w.watchMounts(ctx, w.kernel) })
	wg.Go(func() { w.examineMounts(ctx) })
	if w.options.FilesystemCheckInterval > 0 {
		wg.Go(func() { w.filesystems.run(ctx) })
	}
	if w.options.HungUnmount.isSet() {
		wg.Go(func() { w.hung.run(ctx) })
	}
}

// Stop ends the queues.
func (w *Watch) Stop() {
	w.suspects.Stop()
	w.filesystems.due.Stop()
	w.hung.due.Stop()
}

// Found enters a recorded mount that is still there as ours.
func (w *Watch) Found(own *Mount) {
	w.mounts.enter(own)
	w.filesystems.add(own)
}

// CheckAll queues a check of all mounts.
func (w *Watch) CheckAll() { w.suspects.Add(everyMount) }

// IsMount reports whether a mount of ours is at a path.
func (w *Watch) IsMount(path string) bool { return w.mounts.get(path) != nil }

// MountAt returns our mount at a path, or nil.
func (w *Watch) MountAt(path string) *Mount { return w.mounts.get(path) }

// IsBusy reports whether an operation is changing what is at a path. If so, the watch checks the path when the operation
// ends.
func (w *Watch) IsBusy(path string) bool { return w.mounts.isBusy(path) }

// IsReleased reports whether a volume is no longer mounted although its teardown still hangs.
func (w *Watch) IsReleased(h podvolume.Key) bool { return w.mounts.isReleased(h) }

// All returns our mounts, except those that an operation is changing.
func (w *Watch) All() []*Mount { return w.mounts.all() }

// Lookup returns the facts of the uppermost mount at a path.
func (w *Watch) Lookup(ctx context.Context, path string) (mount.MountPoint, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return w.kernel.Lookup(ctx, path)
}

// Package mountwatch knows the mounts of volumes: it learns of each when it is made, guards it against teardowns of foreign
// mounts, finds out by events what others do to it, looks at its filesystem, and takes it off when its teardown hangs.
package mountwatch

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// kernelMounts is what is used of a mounter that has all of it, as a *mount.Mounter does.
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
	// Mounter is the program's. Only what has the methods of a *mount.Mounter is used.
	Mounter operationexecutor.MountPoints
	// Host tells where volumes are.
	Host volume.VolumeHost
	// Logger gets what fails.
	Logger *slog.Logger
	// Health gets what is wrong with volumes.
	Health *health.Book
	// FilesystemLook is the time between two looks at a filesystem; none below zero.
	FilesystemLook time.Duration
	// HungUnmount says what is done about mounts whose teardown hangs.
	HungUnmount HungUnmount
	// Records says that there are records, so that a mount may be on none.
	Records bool
	// Orphans are the mounts that are on no record.
	Orphans Orphans
	// Hung returns the calls that hang.
	Hung func() []operationexecutor.HungCall
	// Doubt makes a set-up or a staging that was certain uncertain, and reports whether it was.
	Doubt func(podvolume.Key) bool
	// Look has a volume looked at, Retry as if nothing had failed before.
	Look, Retry func(podvolume.Key)
	// Probe asks whether those who serve a volume still answer.
	Probe func(podvolume.Key)
	// LetGo is called when a mount has gone while its teardown hangs.
	LetGo func(podvolume.Key)
}

// Orphans is told of mounts that are not known.
type Orphans interface {
	// MayBe reports whether a path lies where the mounts of volumes do.
	MayBe(path string) bool
	// Examine looks at what is mounted at a path of which nothing is known.
	Examine(ctx context.Context, path string)
	// ExamineUnknown looks at the paths of a mount table, and at the orphans that are not in it.
	ExamineUnknown(ctx context.Context, at map[string]int)
	// PathsOf returns the paths of the orphans that are mounts with one of the unique ids.
	PathsOf(ids []uint64) []string
	// Changed is called when one of them may be gone.
	Changed()
	// Kept is called when a volume was taken away from a path; removed says that nothing is left there.
	Kept(path string, pod types.UID, removed bool)
}

// Watch knows the mounts of volumes, and finds out what others do to them. Make it with [New].
type Watch struct {
	options Options
	// kernel is nil where the mounter cannot tell what is mounted.
	kernel kernelMounts

	// mounts are those that are ours for certain, suspects the paths of those of which there is news.
	mounts   mounts
	suspects *workqueue.Queue[string]
	// filesystems are those on block devices that are to be looked at.
	filesystems *workqueue.Queue[filesystem]
	// resyncs is how often all mounts were to be looked at.
	resyncs atomic.Uint64
	// hung are those of whom a volume is being taken by a call that hangs.
	hung *workqueue.Queue[podvolume.Key]

	// below guards strays: what was found in the directories on which volumes are staged, by path.
	below  sync.Mutex
	strays map[string]error
}

// New returns a watch that knows no mounts. It starts nothing.
func New(o Options) *Watch {
	w := &Watch{
		options: o, suspects: workqueue.New[string](), filesystems: workqueue.New[filesystem](), hung: workqueue.New[podvolume.Key](),
		strays: make(map[string]error),
	}
	w.kernel, _ = o.Mounter.(kernelMounts)
	return w
}

// IsKernel reports whether a mounter can tell what is mounted, as a *mount.Mounter does.
func IsKernel(mounter operationexecutor.MountPoints) bool {
	_, ok := mounter.(kernelMounts)
	return ok
}

// Run starts all goroutines, which end with ctx.
func (w *Watch) Run(ctx context.Context, wg *sync.WaitGroup) {
	w.lookAfterMounts(ctx, wg)
	w.endHung(ctx, wg)
}

// Stop ends the queues.
func (w *Watch) Stop() {
	w.suspects.Stop()
	w.filesystems.Stop()
	w.hung.Stop()
}

// Found takes a mount on record that is there as ours.
func (w *Watch) Found(own *Mount) {
	w.mounts.enter(own)
	w.suspectFilesystem(own)
}

// LookAtAll has all mounts looked at.
func (w *Watch) LookAtAll() { w.suspects.Add(everyMount) }

// IsMount reports whether a mount of ours is at a path.
func (w *Watch) IsMount(path string) bool { return w.mounts.get(path) != nil }

// MountAt returns our mount at a path, or nil.
func (w *Watch) MountAt(path string) *Mount { return w.mounts.get(path) }

// IsBusy reports whether an operation is about to change what is at a path; then there is another look after it.
func (w *Watch) IsBusy(path string) bool { return w.mounts.isBusy(path) }

// IsLetGo reports whether a volume is mounted no more while its teardown hangs.
func (w *Watch) IsLetGo(h podvolume.Key) bool { return w.mounts.isLetGo(h) }

// All returns all mounts that no operation is about to change.
func (w *Watch) All() []*Mount { return w.mounts.all() }

// Lookup returns the facts of the uppermost mount at a path.
func (w *Watch) Lookup(ctx context.Context, path string) (mount.MountPoint, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return w.kernel.Lookup(ctx, path)
}

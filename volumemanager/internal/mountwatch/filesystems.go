package mountwatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// reportTimeout bounds the health report of one filesystem. A filesystem that does not answer delays the checks of the
// others once, and only briefly.
const reportTimeout = time.Second

// filesystem is the device number of a filesystem on a block device. The zero value stands for every other filesystem.
type filesystem struct{ major, minor uint32 }

func filesystemOf(found mount.MountPoint) filesystem {
	if !isOnBlock(found) {
		return filesystem{}
	}
	return filesystem{found.Major, found.Minor}
}

// filesystemReporter is a mounter that reads the health of filesystems.
type filesystemReporter interface {
	Report(ctx context.Context, found mount.MountPoint) (mount.FilesystemReport, error)
}

// lastCheck holds what the last check of a filesystem found.
type lastCheck struct {
	fsType string
	// options are the filesystem's own options, joined.
	options string
	report  mount.FilesystemReport
	// resyncs is the number of resyncs that had begun by then.
	resyncs uint64
}

// filesystemChecks checks the filesystems on block devices that the manager has mounted. It knows which are due, and how
// many resyncs there were.
type filesystemChecks struct {
	options Options
	// kernel is nil if the mounter cannot list mounts. run is then not called.
	kernel   kernelMounts
	mounts   *mounts
	suspects *workqueue.Queue[string]
	// due queues the filesystems that have to be checked.
	due *workqueue.Queue[filesystem]
	// resyncs counts the resyncs: the checks of all mounts.
	resyncs atomic.Uint64
}

// add queues the filesystem of a mount to be checked at once.
func (c *filesystemChecks) add(own *Mount) {
	if own.filesystem != (filesystem{}) && c.options.FilesystemCheckInterval > 0 {
		c.due.Add(own.filesystem)
	}
}

// run checks each filesystem on a block device that the manager has mounted: when it is new, and then at
// intervals, until ctx ends. It has to poll, because the kernel does not report that a filesystem has shut down. It sleeps
// while there is no such filesystem.
func (c *filesystemChecks) run(ctx context.Context) {
	seen := make(map[filesystem]lastCheck)
	probes := writeProbes{slots: make(chan struct{}, maxWriteProbes)}
	defer probes.wg.Wait()
	for {
		fs, ok := c.due.Get(ctx)
		if !ok {
			return
		}
		mounts, busy := c.mounts.ofFilesystem(fs)
		switch {
		case len(mounts) > 0:
			if found, ok := c.check(ctx, mounts, seen[fs]); ok {
				seen[fs] = c.probeWrites(ctx, &probes, mounts, seen[fs], found)
			}
		case !busy:
			delete(seen, fs)
			continue
		}
		// All filesystems are due at the same moment: a node with many volumes wakes up no more often than one with few.
		c.due.AddAt(fs, time.Now().Truncate(c.options.FilesystemCheckInterval).Add(c.options.FilesystemCheckInterval))
	}
}

// check checks a filesystem through the first of its mounts that can be looked up, and reports its faults.
func (c *filesystemChecks) check(ctx context.Context, mounts []*Mount, before lastCheck) (now lastCheck, ok bool) {
	for _, own := range mounts {
		found, err := lookupOwn(ctx, c.kernel, own)
		if err != nil {
			continue // The watch of the mounts finds the cause.
		}
		now = lastCheck{fsType: found.FSType, options: strings.Join(found.SuperOptions, ","), resyncs: c.resyncs.Load()}
		if reporter, ok := c.kernel.(filesystemReporter); ok {
			now.report = c.query(ctx, reporter, found, before.report)
		}
		if now.options != before.options {
			for _, other := range mounts {
				c.suspects.Add(other.path)
			}
		}
		c.report(mounts, now.report)
		return now, true
	}
	return before, false
}

// lookupOwn returns the facts of one of our mounts. It does no I/O on the filesystem.
func lookupOwn(ctx context.Context, kernel mountLooker, own *Mount) (mount.MountPoint, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if own.UniqueID != 0 {
		return kernel.LookupID(ctx, own.UniqueID)
	}
	found, err := kernel.Lookup(ctx, own.path)
	if err == nil && !own.Expect().Is(found) {
		err = foreignOn(own, found)
	}
	return found, err
}

// query returns the health report of a filesystem, or the report before if the filesystem does not answer.
func (c *filesystemChecks) query(
	ctx context.Context, reporter filesystemReporter, found mount.MountPoint, before mount.FilesystemReport,
) mount.FilesystemReport {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	report, err := reporter.Report(ctx, found)
	if err == nil {
		return report
	}
	if ctx.Err() == nil && !errors.Is(err, mount.ErrNotMounted) && !errors.Is(err, mount.ErrStuck) {
		c.options.Logger.Debug("a filesystem does not report its health", "path", found.Path, "error", err)
	}
	return before
}

// report reports the faults of a filesystem as conditions of each of its mounts.
func (c *filesystemChecks) report(mounts []*Mount, report mount.FilesystemReport) {
	var now []health.Condition
	if report.ShutDown {
		now = append(now, health.Abnormal(health.FilesystemShutDown, errShutDown))
	}
	if report.Errors > 0 {
		now = append(now, health.Degraded(health.FilesystemErrors, errorsOnRecord(report)))
	}
	for _, own := range mounts {
		if c.mounts.get(own.path) == own && !c.mounts.isBusy(own.path) {
			c.options.Health.Report(own.Key, health.Filesystem, slices.Clone(now))
		}
	}
}

func errorsOnRecord(report mount.FilesystemReport) error {
	last := ""
	if report.LastError != "" {
		last = ", " + report.LastError
	}
	return fmt.Errorf("its filesystem has %d errors on record%s: what was written then may be missing; see the kernel's log, have it checked", report.Errors, last)
}

const (
	// maxWriteProbes is how many filesystems are synced at a time to find out whether writes have failed.
	maxWriteProbes = 4
	// writeProbeTimeout bounds one such sync.
	writeProbeTimeout = time.Minute
)

// writeProbes holds the syncs that run.
type writeProbes struct {
	wg    sync.WaitGroup
	slots chan struct{}
}

// probeWrites starts a sync of a filesystem if a write to it may have failed. It returns the lastCheck to keep: now, or before
// if too many syncs run already. The next check then tries again.
//
// The kernel keeps a failed write until the next syncfs(2) of a descriptor that was opened before the failure, or of the
// first descriptor that asks. The manager cannot hold such a descriptor, because it would block every unmount. A syncfs
// writes all dirty data, which is too much for each check. ext4 counts its complaints: it is synced only when the count has
// grown. Other filesystems count nothing (btrfs does not count a lack of space below it): they are synced at each resync.
func (c *filesystemChecks) probeWrites(ctx context.Context, probes *writeProbes, mounts []*Mount, before, now lastCheck) lastCheck {
	if !now.mayHaveFailed(before) {
		return now
	}
	select {
	case probes.slots <- struct{}{}:
	default:
		return before
	}
	probes.wg.Go(func() {
		defer func() { <-probes.slots }()
		c.sync(ctx, mounts)
	})
	return now
}

// mayHaveFailed reports whether a write may have failed since the check before. At the first check only a warning counts,
// because ext4 counts every mount and every expansion as a complaint.
func (g lastCheck) mayHaveFailed(before lastCheck) bool {
	switch g.fsType {
	case "ext2", "ext3", "ext4":
		if before.fsType == "" {
			return g.report.Warnings > 0
		}
		return g.report.Complaints > before.report.Complaints
	}
	return before.fsType != "" && g.resyncs > before.resyncs
}

// sync syncs a filesystem through the first of its mounts that is usable. It reports a write that has failed, now or
// earlier.
func (c *filesystemChecks) sync(ctx context.Context, mounts []*Mount) {
	ctx, cancel := context.WithTimeout(ctx, writeProbeTimeout)
	defer cancel()
	for _, own := range mounts {
		found, err := c.kernel.Lookup(ctx, own.path)
		if err != nil || !own.Expect().Is(found) || c.mounts.isBusy(own.path) {
			continue
		}
		if HasFailed(found) || IsReadOnly(found) {
			return // The fault is reported already, and the filesystem writes nothing any more.
		}
		err = c.kernel.SyncFS(ctx, own.path)
		var lost *mount.AbandonedError
		switch {
		case err == nil:
		case errors.As(err, &lost), errors.Is(err, mount.ErrNotMounted), errors.Is(err, mount.ErrStuck), couldNotSync(err):
			c.options.Logger.Debug("it is not known whether writes to a volume have failed", "volume", own.Volume, "path", own.path, "error", err)
		default:
			c.reportLoss(mounts, fmt.Errorf("data that was written may be lost: %w", err))
		}
		return
	}
}

// reportLoss reports a failed write as a condition of each mount of the filesystem. It remembers the loss once for each
// volume: for the staging if the volume is staged.
func (c *filesystemChecks) reportLoss(mounts []*Mount, err error) {
	staged := make(map[v1.UniqueVolumeName]bool)
	for _, own := range mounts {
		staged[own.Volume] = staged[own.Volume] || own.Pod == ""
	}
	for _, own := range mounts {
		if own.Pod == "" || !staged[own.Volume] {
			c.options.Health.DataLost(own.Key, err)
			continue
		}
		c.options.Health.Report(own.Key, health.Sync, []health.Condition{health.Abnormal(health.DataLost, err)})
	}
}

var _ filesystemReporter = (*mount.Mounter)(nil)

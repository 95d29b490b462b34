package mountwatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// reportTimeout bounds what one filesystem is asked, so that one that does not answer holds up the looks at the others once, and
// not for long.
const reportTimeout = time.Second

// filesystem is the device number of a filesystem on a block device. The zero value stands for every other filesystem.
type filesystem struct{ major, minor uint32 }

func filesystemOf(found mount.MountPoint) filesystem {
	if !isOnBlock(found) {
		return filesystem{}
	}
	return filesystem{found.Major, found.Minor}
}

// filesystemReporter is what a mounter can do that asks filesystems for their health.
type filesystemReporter interface {
	Report(ctx context.Context, found mount.MountPoint) (mount.FilesystemReport, error)
}

// glance is what was seen of a filesystem when it was last looked at.
type glance struct {
	fsType string
	// options are its own ones, joined.
	options string
	report  mount.FilesystemReport
	// resyncs is how many had begun.
	resyncs uint64
}

// suspectFilesystem has the filesystem of a mount looked at now.
func (w *Watch) suspectFilesystem(own *Mount) {
	if own.filesystem != (filesystem{}) && w.options.FilesystemLook > 0 {
		w.filesystems.Add(own.filesystem)
	}
}

// lookAtFilesystems looks at each filesystem on a block device of which we have a mount, when that is new and then from time to
// time, until ctx ends: the kernel tells nobody that one has given up. It sleeps while there is none.
func (w *Watch) lookAtFilesystems(ctx context.Context, kernel mountLooker) {
	seen := make(map[filesystem]glance)
	probes := writeProbes{slots: make(chan struct{}, maxWriteProbes)}
	defer probes.wg.Wait()
	for {
		fs, ok := w.filesystems.Get(ctx)
		if !ok {
			return
		}
		mounts, busy := w.mounts.ofFilesystem(fs)
		switch {
		case len(mounts) > 0:
			if found, ok := w.lookAtFilesystem(ctx, kernel, mounts, seen[fs]); ok {
				seen[fs] = w.probeWrites(ctx, &probes, mounts, seen[fs], found)
			}
		case !busy:
			delete(seen, fs)
			continue
		}
		// All at once, so that a node with many volumes wakes up no more often than one with few.
		w.filesystems.AddAt(fs, time.Now().Truncate(w.options.FilesystemLook).Add(w.options.FilesystemLook))
	}
}

// lookAtFilesystem looks at one, at the first of our mounts of it that can be seen, and tells what is wrong.
func (w *Watch) lookAtFilesystem(ctx context.Context, kernel mountLooker, mounts []*Mount, before glance) (now glance, ok bool) {
	for _, own := range mounts {
		found, err := lookupOwn(ctx, kernel, own)
		if err != nil {
			continue // The watch of the mounts finds out why.
		}
		now = glance{fsType: found.FSType, options: strings.Join(found.SuperOptions, ","), resyncs: w.resyncs.Load()}
		if reporter, ok := kernel.(filesystemReporter); ok {
			now.report = w.askFilesystem(ctx, reporter, found, before.report)
		}
		if now.options != before.options {
			for _, other := range mounts {
				w.suspects.Add(other.path)
			}
		}
		w.tellOfFilesystem(mounts, now.report)
		return now, true
	}
	return before, false
}

// lookupOwn returns the facts of a mount of ours. The filesystem is asked for nothing.
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

// askFilesystem returns what a filesystem tells, or what it told before when it does not answer.
func (w *Watch) askFilesystem(
	ctx context.Context, reporter filesystemReporter, found mount.MountPoint, before mount.FilesystemReport,
) mount.FilesystemReport {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	report, err := reporter.Report(ctx, found)
	if err == nil {
		return report
	}
	if ctx.Err() == nil && !errors.Is(err, mount.ErrNotMounted) && !errors.Is(err, mount.ErrStuck) {
		w.options.Logger.Debug("a filesystem could not be asked for its health", "path", found.Path, "error", err)
	}
	return before
}

// tellOfFilesystem says what is wrong with a filesystem to all who have it.
func (w *Watch) tellOfFilesystem(mounts []*Mount, report mount.FilesystemReport) {
	var now []health.Condition
	if report.ShutDown {
		now = append(now, health.Abnormal(health.FilesystemShutDown, errShutDown))
	}
	if report.Errors > 0 {
		now = append(now, health.Degraded(health.FilesystemErrors, errorsOnRecord(report)))
	}
	for _, own := range mounts {
		if w.mounts.get(own.path) == own && !w.mounts.isBusy(own.path) {
			w.options.Health.Report(own.Key, health.Filesystem, slices.Clone(now))
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
	// maxWriteProbes is how many filesystems are written at a time to find out whether writes have failed.
	maxWriteProbes = 4
	// writeProbeTimeout bounds one.
	writeProbeTimeout = time.Minute
)

// writeProbes are the filesystems that are being written.
type writeProbes struct {
	wg    sync.WaitGroup
	slots chan struct{}
}

// probeWrites finds out whether data could not be written to a filesystem, where there is a reason to. It returns what has
// been seen of it: as before when too many others are being written, so that it is done at the next look.
//
// The kernel keeps a failed write until the next syncfs(2) of a descriptor that was opened before it, or that is the first to ask.
// Such a descriptor cannot be held, since nobody could unmount the filesystem; and a syncfs writes all that is dirty, which
// is too much to do it at each look. ext4 counts what it complains of, so that only then it is done. Other filesystems count
// nothing (btrfs does not count a want of space below it): they are written at the resync.
func (w *Watch) probeWrites(ctx context.Context, probes *writeProbes, mounts []*Mount, before, now glance) glance {
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
		w.syncOne(ctx, w.kernel, mounts)
	})
	return now
}

// mayHaveFailed reports whether a write may have failed since the filesystem was looked at before. At the first look only a
// warning counts, since each mount and each growth is on the count of complaints.
func (g glance) mayHaveFailed(before glance) bool {
	switch g.fsType {
	case "ext2", "ext3", "ext4":
		if before.fsType == "" {
			return g.report.Warnings > 0
		}
		return g.report.Complaints > before.report.Complaints
	}
	return before.fsType != "" && g.resyncs > before.resyncs
}

// syncOne writes what is dirty in a filesystem, at the first of our mounts of it that can be used, and tells of a write that has
// failed, then or before.
func (w *Watch) syncOne(ctx context.Context, kernel kernelMounts, mounts []*Mount) {
	ctx, cancel := context.WithTimeout(ctx, writeProbeTimeout)
	defer cancel()
	for _, own := range mounts {
		found, err := kernel.Lookup(ctx, own.path)
		if err != nil || !own.Expect().Is(found) || w.mounts.isBusy(own.path) {
			continue
		}
		if HasFailed(found) || IsReadOnly(found) {
			return // That is told already, and nothing is written any more.
		}
		err = kernel.SyncFS(ctx, own.path)
		var lost *mount.AbandonedError
		switch {
		case err == nil:
		case errors.As(err, &lost), errors.Is(err, mount.ErrNotMounted), errors.Is(err, mount.ErrStuck), couldNotSync(err):
			w.options.Logger.Debug("it is not known whether writes to a volume have failed", "volume", own.Volume, "path", own.path, "error", err)
		default:
			w.writesFailed(mounts, fmt.Errorf("data that was written may be lost: %w", err))
		}
		return
	}
}

// writesFailed tells all who have a filesystem that a write to it has failed, and keeps that once for each volume: for its
// staging where it has one.
func (w *Watch) writesFailed(mounts []*Mount, err error) {
	staged := make(map[v1.UniqueVolumeName]bool)
	for _, own := range mounts {
		staged[own.Volume] = staged[own.Volume] || own.Pod == ""
	}
	for _, own := range mounts {
		if own.Pod == "" || !staged[own.Volume] {
			w.options.Health.DataLost(own.Key, err)
			continue
		}
		w.options.Health.Report(own.Key, health.Sync, []health.Condition{health.Abnormal(health.DataLost, err)})
	}
}

var _ filesystemReporter = (*mount.Mounter)(nil)

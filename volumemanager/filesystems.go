package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volumekit/volumekit/mount"
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
	// options are its own ones, joined.
	options string
	report  mount.FilesystemReport
}

// filesystemMounted has the filesystem of a mount looked at that was made, or found, just now.
func (m *Manager) filesystemMounted(own *ownMount) {
	if own.filesystem != (filesystem{}) && m.options.FilesystemLook > 0 {
		m.filesystems.Add(own.filesystem)
	}
}

// lookAtFilesystems looks at each filesystem on a block device of which we have a mount, when that is new and then from time to
// time, until ctx ends: the kernel tells nobody that one has given up. It sleeps while there is none.
func (m *Manager) lookAtFilesystems(ctx context.Context, kernel mountLooker) {
	seen := make(map[filesystem]glance)
	for {
		fs, ok := m.filesystems.Get(ctx)
		if !ok {
			return
		}
		mounts, busy := m.mounts.ofFilesystem(fs)
		switch {
		case len(mounts) > 0:
			m.lookAtFilesystem(ctx, kernel, mounts, seen)
		case !busy:
			delete(seen, fs)
			continue
		}
		// All at once, so that a node with many volumes wakes up no more often than one with few.
		m.filesystems.AddAt(fs, time.Now().Truncate(m.options.FilesystemLook).Add(m.options.FilesystemLook))
	}
}

// lookAtFilesystem looks at one, at the first of our mounts of it that can be seen.
func (m *Manager) lookAtFilesystem(ctx context.Context, kernel mountLooker, mounts []*ownMount, seen map[filesystem]glance) {
	for _, own := range mounts {
		found, err := lookupOwn(ctx, kernel, own)
		if err != nil {
			continue // The watch of the mounts finds out why.
		}
		now, before := glance{options: strings.Join(found.SuperOptions, ",")}, seen[own.filesystem]
		if reporter, ok := kernel.(filesystemReporter); ok {
			now.report = m.askFilesystem(ctx, reporter, found, before.report)
		}
		if now.options != before.options {
			for _, other := range mounts {
				m.suspects.Add(other.path)
			}
		}
		seen[own.filesystem] = now
		m.tellOfFilesystem(mounts, now.report)
		return
	}
}

// lookupOwn returns the facts of a mount of ours. The filesystem is asked for nothing.
func lookupOwn(ctx context.Context, kernel mountLooker, own *ownMount) (mount.MountPoint, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if own.uniqueID != 0 {
		return kernel.LookupID(ctx, own.uniqueID)
	}
	found, err := kernel.Lookup(ctx, own.path)
	if err == nil && !own.expect().Is(found) {
		err = foreignOn(own, found)
	}
	return found, err
}

// askFilesystem returns what a filesystem tells, or what it told before when it does not answer.
func (m *Manager) askFilesystem(
	ctx context.Context, reporter filesystemReporter, found mount.MountPoint, before mount.FilesystemReport,
) mount.FilesystemReport {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	report, err := reporter.Report(ctx, found)
	if err == nil {
		return report
	}
	if ctx.Err() == nil && !errors.Is(err, mount.ErrNotMounted) && !errors.Is(err, mount.ErrStuck) {
		m.options.Logger.Debug("a filesystem could not be asked for its health", "path", found.Path, "error", err)
	}
	return before
}

// tellOfFilesystem says what is wrong with a filesystem to all who have it.
func (m *Manager) tellOfFilesystem(mounts []*ownMount, report mount.FilesystemReport) {
	var now []Condition
	if report.ShutDown {
		now = append(now, abnormal(ReasonFilesystemShutDown, errShutDown))
	}
	if report.Errors > 0 {
		now = append(now, degraded(ReasonFilesystemErrors, errorsOnRecord(report)))
	}
	for _, own := range mounts {
		if m.mounts.get(own.path) == own && !m.mounts.isBusy(own.path) {
			m.report(own.holder, sourceFilesystem, slices.Clone(now))
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

var _ filesystemReporter = (*mount.Mounter)(nil)

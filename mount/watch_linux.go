package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// watcher waits for changes of the mount table. A poll of the table reports that something has changed. A fanotify group, if the
// kernel has one for mounts, reports which mounts were attached and detached.
type watcher struct {
	buffer []byte // for events
	reader *reader
	end    int // an eventfd; a write to it ends the watch
	table  int
	events int // the fanotify group, or -1
}

// eventBurst is how long events are collected before they are reported.
const eventBurst = 5 * time.Millisecond

// watch is Watch.
func (r *reader) watch(ctx context.Context, changed func(TableChange)) (err error) {
	w := &watcher{reader: r, end: -1, table: -1, events: -1}
	defer w.close()
	if err := w.open(); err != nil {
		return err
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		// It fails only when it was written already.
		_, _ = unix.Write(w.end, binary.NativeEndian.AppendUint64(nil, 1))
	})
	defer func() {
		if !stop() {
			<-ended // it writes to what close closes
		}
	}()
	changed(TableChange{Whole: true, Options: true})
	for ctx.Err() == nil {
		change, err := w.next()
		if err != nil {
			return err
		}
		if ctx.Err() == nil && !change.isEmpty() {
			changed(change)
		}
	}
	return nil
}

func (w *watcher) open() (err error) {
	if w.end, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if w.table, err = openTable(); err != nil {
		return err
	}
	if w.reader.without.has(FeatureFanotify | FeatureStatmount) {
		return nil
	}
	if w.events, err = openMountEvents(); err != nil {
		w.events = -1 // an older kernel, or no right to it: the table must do
	}
	return nil
}

func (w *watcher) close() {
	for _, fd := range []int{w.end, w.table, w.events} {
		if fd >= 0 {
			closeFD(fd)
		}
	}
}

// next waits for the next change, or for the end.
func (w *watcher) next() (TableChange, error) {
	change, told, err := w.wait()
	if err != nil || w.events < 0 {
		change.Whole = change.Options
		return change, err
	}
	if change.Options && !told {
		w.awaitEvents()
	}
	w.gather()
	return change, w.explain(&change)
}

// gather waits for more events: many mounts at once then wake the callers once.
func (w *watcher) gather() {
	fds := []unix.PollFd{{Fd: int32(w.end), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, int(eventBurst.Milliseconds())) // cut short by the end
}

// wait waits until the table has changed or there are events.
func (w *watcher) wait() (change TableChange, told bool, err error) {
	fds := []unix.PollFd{
		{Fd: int32(w.end), Events: unix.POLLIN},
		{Fd: int32(w.table), Events: unix.POLLPRI},
		{Fd: int32(w.events), Events: unix.POLLIN}, // poll ignores what is negative
	}
	if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
		return TableChange{}, false, fmt.Errorf("poll: %w", err)
	}
	return TableChange{Options: fds[1].Revents != 0}, fds[2].Revents != 0, nil
}

// awaitEvents waits for the events that explain a change of the table. Without an event, the change was one of options.
func (w *watcher) awaitEvents() {
	fds := []unix.PollFd{{Fd: int32(w.end), Events: unix.POLLIN}, {Fd: int32(w.events), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, int(w.reader.eventLag.Milliseconds())) // what it says is read in any case
}

// explain adds the events to change. A mount of these events may have changed the table after the last poll. explain polls again:
// otherwise the next poll would report that change once more, without an event.
func (w *watcher) explain(change *TableChange) error {
	if err := w.readEvents(change); err != nil || len(change.Attached)+len(change.Detached) == 0 {
		return err
	}
	change.Options = w.tableChanged() || change.Options
	return nil
}

// tableChanged reports whether the table has changed since the last poll.
func (w *watcher) tableChanged() bool {
	fds := []unix.PollFd{{Fd: int32(w.table), Events: unix.POLLPRI}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents != 0
}

func (c *TableChange) isEmpty() bool {
	return len(c.Attached) == 0 && len(c.Detached) == 0 && !c.Whole && !c.Options
}

// readEvents adds the events of the fanotify group to change.
func (w *watcher) readEvents(change *TableChange) error {
	if w.buffer == nil {
		w.buffer = make([]byte, 64<<10)
	}
	log := mountEvents{}
	for {
		n, err := unix.Read(w.events, w.buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil && !errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("reading the events of mounts: %w", err)
		}
		log.parse(w.buffer[:max(n, 0)])
		if n >= len(w.buffer)-eventRoom {
			continue // There may be more. Otherwise what comes from now on is waited for.
		}
		if !log.report(w.reader, change) {
			return nil
		}
		w.awaitEvents()
		log = mountEvents{}
	}
}

// openMountEvents opens a fanotify group for all mounts of this namespace (Linux 6.15).
func openMountEvents() (int, error) {
	fd, err := unix.FanotifyInit(unix.FAN_REPORT_MNT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("fanotify_init: %w", err)
	}
	ns, err := unix.Open("/proc/self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_MNTNS, unix.FAN_MNT_ATTACH|unix.FAN_MNT_DETACH, ns, "")
		closeFD(ns)
	}
	if err != nil {
		closeFD(fd)
		return -1, fmt.Errorf("fanotify_mark: %w", err)
	}
	return fd, nil
}

// mountEvents holds the last event of each mount, in the order of the events.
type mountEvents struct {
	order []uint64
	masks map[uint64]uint64
	lost  bool
}

// The parts of an event, struct fanotify_event_metadata and struct fanotify_event_info_mnt of linux/fanotify.h.
const (
	eventMetadataSize = 24
	eventMaskOffset   = 8
	eventInfoHeader   = 4
	eventMountID      = 8
	eventMountSize    = 16
	// eventRoom is more than an event takes.
	eventRoom = 1024
)

// parse reads events. An event that it cannot parse counts as lost.
func (e *mountEvents) parse(buffer []byte) {
	for len(buffer) > 0 {
		if len(buffer) < eventMetadataSize {
			e.lost = true
			return
		}
		size := int(binary.NativeEndian.Uint32(buffer))
		if size < eventMetadataSize || size > len(buffer) || buffer[4] != unix.FANOTIFY_METADATA_VERSION {
			e.lost = true
			return
		}
		e.event(binary.NativeEndian.Uint64(buffer[eventMaskOffset:]), buffer[eventMetadataSize:size])
		buffer = buffer[size:]
	}
}

func (e *mountEvents) event(mask uint64, info []byte) {
	if mask&unix.FAN_Q_OVERFLOW != 0 {
		e.lost = true
		return
	}
	for len(info) >= eventInfoHeader {
		size := int(binary.NativeEndian.Uint16(info[2:]))
		if size < eventInfoHeader || size > len(info) {
			break
		}
		if info[0] == unix.FAN_EVENT_INFO_TYPE_MNT && size >= eventMountSize {
			e.add(binary.NativeEndian.Uint64(info[eventMountID:]), mask)
			return
		}
		info = info[size:]
	}
	e.lost = true
}

// add stores an event as the last one of its mount.
func (e *mountEvents) add(id, mask uint64) {
	if e.masks == nil {
		e.masks = map[uint64]uint64{}
	}
	if _, again := e.masks[id]; again {
		e.order = slices.DeleteFunc(e.order, func(other uint64) bool { return other == id })
	}
	e.masks[id] = mask
	e.order = append(e.order, id)
}

// report writes the events into change, with the facts of the attached mounts. It returns true if an attached mount is gone
// again: an event for that will come.
func (e *mountEvents) report(r *reader, change *TableChange) (hasGone bool) {
	change.Whole = change.Whole || e.lost
	for _, id := range e.order {
		if e.masks[id]&unix.FAN_MNT_ATTACH == 0 {
			change.Detached = append(change.Detached, id)
			continue
		}
		switch found, err := r.lookupID(id); {
		case err == nil:
			change.Attached = append(change.Attached, found)
		case errors.Is(err, ErrNotMounted):
			hasGone = true
		default:
			change.Whole = true
		}
	}
	return hasGone
}

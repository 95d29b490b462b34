// Package journal has the records of a volume manager: which volumes may be attached, staged and set up on the node. A record is written
// before the call with the effect, and removed when the last effect is gone. After a success only the identity of the mount is added.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/keylock"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
	"github.com/volumekit/volumekit/volumemanager/internal/rootlock"
)

// Options is what a [Journal] needs.
type Options struct {
	// RuntimeDir is the directory of the records of mounts, StateDir that of attachments. If StateDir is empty, RuntimeDir has both.
	RuntimeDir, StateDir string
	// Plugins are the plugins of the manager.
	Plugins Plugins
	// Logger logs failed writes that make no operation fail.
	Logger *slog.Logger
	// Root is the lock of the root directory of all volumes.
	Root *rootlock.Lock
	// Mounts is the mount table. Nil means that records have no identities of mounts.
	Mounts Table
	// Learned returns the mount that the manager has made at a path, or nil. Without it, Mounts is read.
	Learned func(path string) *mountwatch.Mount
}

// Plugins is the part of the registry that a journal needs. A [*volume.VolumePluginMgr] implements it.
type Plugins interface {
	// Host returns the host. Its directories are used to check paths of records.
	Host() volume.VolumeHost
	// PublicKeys returns the keys whose values in the specs of a plugin may be recorded.
	PublicKeys(pluginName string) []string
	// CanReuse reports whether a volume needs no set-up after a restart.
	CanReuse(spec *volume.Spec) (bool, error)
}

// Journal is the [operationexecutor.Journal] on disk. The runtime directory has one record for each volume, and one for each of its pods
// beyond the first ones. The state directory, if there is one, has a record for the attachment of each volume. Make it with [New].
//
// A record says what may be on the node, not how certain that is: after a restart everything on it is uncertain until a set-up or a
// teardown has succeeded. So a successful effect needs one write before it, and its removal one write after it. With a mount table, one
// more write after the effect adds the identity of the mount.
type Journal struct {
	// Disk opens the directories. Tests may replace it before Open.
	Disk Disk

	table

	options Options
	// bootID, runtime and state are set once, by Open, before the first operation. runtime holds mounts, state attachments. They
	// are the same when there is no state directory.
	bootID         string
	runtime, state Dir

	// locks serializes the writers of one volume's record.
	locks keylock.Locks[v1.UniqueVolumeName]
	// removals makes removals at a path and its next use exclude each other.
	removals pathLocks
}

var (
	_ operationexecutor.Journal     = (*Journal)(nil)
	_ operationexecutor.RootChecker = (*Journal)(nil)
)

// entry is one record.
type entry struct {
	at     podvolume.Key
	record Record
	// stale says that a write has failed: the disk may not have the record.
	stale bool
}

// New returns a journal that is not open yet. It does no I/O.
func New(o Options) *Journal {
	return &Journal{
		Disk: Disk{OpenDir: OpenDir, BootID: record.BootID}, options: o,
		table: table{
			entries: make(map[podvolume.Key]*entry), stale: make(map[podvolume.Key]struct{}),
			late: workqueue.New[struct{}](), replaced: newRecorded(0),
		},
	}
}

// ErrNotRecorded matches the error of an operation that did not begin because its intent could not be recorded: the directory of records
// is full, is read-only or fails. Teardowns of existing volumes begin all the same.
var ErrNotRecorded = errors.New("the intent could not be recorded")

// Intend implements operationexecutor.Journal. If the record cannot be written, the earlier one stays. The operation then
// begins only if the disk has its intent already, or if it is a teardown.
func (j *Journal) Intend(ctx context.Context, intent operationexecutor.Intent) error {
	if err := j.options.Root.Take(ctx); err != nil {
		return err
	}
	e, next, release, err := j.begin(ctx, intent)
	if err != nil {
		return err
	}
	defer release()
	if err := j.removals.intend(intent); err != nil {
		return err
	}
	defer j.removals.end(intent)
	changed := next.add(intent)
	changed = j.lost(ctx, &next, intent) || changed
	changed = next.unsettle(intent) || changed
	if !changed && !e.stale {
		return nil
	}
	if err := j.write(e.at, next, e.touched(intent)); err != nil {
		// The file may hold the intent, when only the sync failed: the next change writes it again. What was on record before
		// is on it in any case, or was never.
		e.record.Volume, e.stale = intent.VolumeName, true
		j.enter(e)
		if changed && !undoes(intent.Kind) {
			return fmt.Errorf("%s does not begin: %w: %w", intent.Kind, ErrNotRecorded, err)
		}
		j.notWritten(e.at, err) // No caller gets this error.
		return nil              // See above.
	}
	j.enter(entry{at: e.at, record: next})
	return nil
}

// CheckRoot implements operationexecutor.RootChecker.
func (j *Journal) CheckRoot(ctx context.Context) error { return j.options.Root.Check(ctx) }

// Conclude implements operationexecutor.Journal. If the record cannot be written, it stays in memory. It is written with the next change of
// the volume, when the removal of another record has made room, after a back-off, at the resync or at the end.
func (j *Journal) Conclude(ctx context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	freed, err := j.conclude(ctx, intent, end)
	if freed {
		j.CatchUp(ctx)
	}
	return err
}

// conclude reports whether a record was removed, which may have made room.
func (j *Journal) conclude(ctx context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) (freed bool, err error) {
	// This waits for the lock without a deadline: no later call would repeat the write.
	e, next, release, err := j.begin(context.WithoutCancel(ctx), intent)
	if err != nil {
		return false, err
	}
	defer release()
	changed := false
	if end == operationexecutor.IntentForgotten {
		changed = next.drop(intent)
	} else {
		changed = next.add(intent)
		changed = j.seen(ctx, &next, intent, end) || changed
	}
	if !changed && !e.stale {
		return false, nil
	}
	err = j.write(e.at, next, e.touched(intent))
	j.enter(entry{at: e.at, record: next, stale: err != nil})
	return err == nil && next.isEmpty(), err
}

// WriteLate writes the records that could not be written before, after each back-off, until ctx ends. It sleeps while all are written.
func (j *Journal) WriteLate(ctx context.Context) {
	defer j.late.Stop()
	for failures := 0; ; {
		if _, ok := j.late.Get(ctx); !ok {
			return
		}
		j.CatchUp(ctx)
		if failures++; !j.IsBehind() {
			failures = 0
			continue
		}
		j.late.AddAt(struct{}{}, retry.At(failures))
	}
}

// CatchUp writes the records that could not be written before, until a write fails.
func (j *Journal) CatchUp(ctx context.Context) {
	for _, h := range j.behind() {
		release, ok := j.locks.Take(ctx.Done(), h.Volume)
		if !ok {
			return
		}
		err := j.rewrite(h)
		release()
		if err != nil {
			return
		}
	}
}

// rewrite writes a record if the disk may not have it. The caller holds the lock of its volume.
func (j *Journal) rewrite(h podvolume.Key) error {
	e := j.entryOf(h)
	if !e.stale {
		return nil
	}
	err := j.write(h, e.record, partAll)
	j.enter(entry{at: h, record: e.record, stale: err != nil})
	if err != nil {
		j.notWritten(h, err)
	}
	return err
}

// notWritten logs that a record could not be written, if no operation fails because of that.
func (j *Journal) notWritten(h podvolume.Key, err error) {
	j.options.Logger.Warn("a record could not be written, and will be later", "volume", h.Volume, "error", err)
}

// begin takes the lock of a volume, and returns the entry of an intent and a record to be changed. release ends the lock.
func (j *Journal) begin(ctx context.Context, intent operationexecutor.Intent) (e entry, next Record, release func(), err error) {
	release, ok := j.locks.Take(ctx.Done(), intent.VolumeName)
	if !ok {
		return e, next, nil, fmt.Errorf("record of volume %q is being written: %w", intent.VolumeName, context.Cause(ctx))
	}
	e = j.entryOf(j.home(intent))
	next = e.record.clone()
	if err := j.identify(&next, intent); err != nil {
		release()
		return e, next, nil, err
	}
	return e, next, release, nil
}

// identify sets the fields that every record has. The spec is recorded once; it stays the same for the life of the volume.
func (j *Journal) identify(r *Record, intent operationexecutor.Intent) error {
	r.Version, r.BootID, r.Volume, r.Plugin = Version, j.bootID, intent.VolumeName, intent.PluginName
	if len(r.Spec) > 0 || intent.Spec == nil {
		return nil
	}
	if of := j.ofVolume(intent.VolumeName).record; of.encoded == intent.Spec {
		r.Spec, r.encoded, r.inner = of.Spec, of.encoded, of.inner // of a pod that gets a record of its own
		return nil
	}
	spec, err := encodeSpec(intent.Spec, j.options.Plugins.PublicKeys(intent.PluginName))
	if err != nil {
		return fmt.Errorf("spec of volume %q cannot be recorded: %w", intent.VolumeName, err)
	}
	r.Spec, r.encoded, r.inner = spec, intent.Spec, intent.Spec.Name()
	return nil
}

// touched returns the part of the record that must be written for a change of the intent.
func (e entry) touched(intent operationexecutor.Intent) part {
	if e.stale {
		return partAll
	}
	return partOf(intent)
}

// write writes the part p of the record r.
func (j *Journal) write(h podvolume.Key, r Record, p part) error {
	key := keyOf(h)
	if j.runtime == j.state || h.Pod != "" {
		return put(j.runtime, key, r)
	}
	var errs []error
	if p == partAttachment || p == partAll {
		errs = append(errs, put(j.state, key, r.attachments()))
	}
	if p != partAttachment {
		errs = append(errs, put(j.runtime, key, r.mounts()))
	}
	return errors.Join(errs...)
}

// put writes a record, or removes it if it is empty.
func put(dir Dir, key string, r Record) error {
	if r.isEmpty() {
		return dir.Remove(key)
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record of volume %q: %w", r.Volume, err)
	}
	return dir.Put(key, payload)
}

// HasAttachment reports whether a record says that this node may have attached a volume by itself. Without records it is false.
func (j *Journal) HasAttachment(name v1.UniqueVolumeName) bool {
	return j != nil && j.ofVolume(name).record.Attachment != nil
}

package volumemanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

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

// journal is the operationexecutor.Journal on disk: one record for each volume in the runtime directory, one for each of its
// pods beyond the first ones, and one for its attachment in the state directory where there is one.
//
// A record says what may be there, not how sure that is: after a restart everything on it is uncertain until a set-up or
// a teardown has succeeded. So an effect that succeeds costs one write, before it, and its undoing one, after it. With a
// mount table there is one more after the effect, which says by what the mount is known that is there now.
type journal struct {
	disk   disk
	logger *slog.Logger

	// What follows is set once, by open, before the first operation.
	bootID string
	// runtime holds mounts, state attachments. They are the same when there is no state directory.
	runtime, state recordDir

	// turns orders those who write the record of one volume.
	turns keylock.Locks[v1.UniqueVolumeName]
	mu    sync.Mutex
	// entries are the records as they are on disk: those of volumes, and those that pods have for themselves. Who has the turn of a
	// volume may change its entries.
	entries map[podvolume.Key]*journalEntry
	// trace is what has been on record until orphans are looked for; nil after that.
	trace *trace
	// stale holds those of which the disk may not know. late has its one key when they are to be written.
	stale map[podvolume.Key]struct{}
	late  *workqueue.Queue[struct{}]

	// mounts tells what is mounted; nil: it is not asked.
	mounts MountTable
	// learned returns the mount of ours that was learned to be at a path, or nil; without it, mounts is asked.
	learned func(path string) *mountwatch.Mount
	// agrees compares a record that was read with its plugin; nil: they are not compared.
	agrees func(volumeRecord, *volume.Spec) error
	// renamed returns a record that was read under the name that its volume has now.
	renamed func(foundVolume) foundVolume
	root    *rootlock.Lock
	// public returns the keys whose values in the specs of a plugin may be recorded.
	public func(pluginName string) []string
	// reusable reports whether the plugin of a volume says that the volume needs no set-up after a restart.
	reusable func(*volume.Spec) bool
	claims   pathClaims
}

var _ operationexecutor.Journal = (*journal)(nil)

// journalEntry is one record.
type journalEntry struct {
	at     podvolume.Key
	record volumeRecord
	// stale says that the files are not what record says, since a write failed.
	stale bool
}

func newJournal() *journal {
	return &journal{
		public:   func(string) []string { return nil },
		reusable: func(*volume.Spec) bool { return false },
		disk:     disk{openDir: openRecords, bootID: bootID}, logger: slog.New(slog.DiscardHandler),
		entries: make(map[podvolume.Key]*journalEntry), stale: make(map[podvolume.Key]struct{}),
		late: workqueue.New[struct{}](), root: &rootlock.Lock{}, trace: newTrace(),
		renamed: func(v foundVolume) foundVolume { return v },
	}
}

// disk is what a journal finds when it is opened: directories of records, and the boot in which it runs.
type disk struct {
	openDir func(path string, o record.Options) (recordDir, error)
	bootID  func() (string, error)
}

// recordDir is a directory of records; a [*record.Dir] is one.
type recordDir interface {
	Load() ([]record.Record, []record.Damaged, error)
	Put(key string, payload []byte) error
	Remove(key string) error
	Quarantine(key string, reason error) record.Damaged
	Close() error
}

// ErrNotRecorded matches the error of an operation that did not begin because its intent could not be recorded: the
// directory of records is full, is read-only or fails. What is there is torn down all the same.
var ErrNotRecorded = errors.New("the intent could not be recorded")

// Intend implements operationexecutor.Journal. When the record cannot be written, the earlier one stands, and only that
// begins of which the disk knows already, or that takes away.
func (j *journal) Intend(ctx context.Context, intent operationexecutor.Intent) error {
	if err := j.root.Take(); err != nil {
		return err
	}
	e, next, release, err := j.begin(ctx, intent)
	if err != nil {
		return err
	}
	defer release()
	if err := j.claims.intend(intent); err != nil {
		return err
	}
	defer j.claims.end(intent)
	changed := next.add(intent)
	changed = j.lost(ctx, &next, intent) || changed
	changed = next.unsettle(intent) || changed
	if !changed && !e.stale {
		return nil
	}
	if err := j.write(e.at, next, e.touched(intent)); err != nil {
		// The file may hold the intent, when only the sync failed: the next change writes it again. What was on record before
		// is on it in any case, or was never.
		j.enter(journalEntry{at: e.at, record: e.record.of(intent.VolumeName), stale: true})
		if changed && !undoes(intent.Kind) {
			return fmt.Errorf("%s does not begin: %w: %w", intent.Kind, ErrNotRecorded, err)
		}
		j.notWritten(e.at, err) // Nobody else hears of it.
		return nil              // See above.
	}
	j.enter(journalEntry{at: e.at, record: next})
	return nil
}

// Conclude implements operationexecutor.Journal. When the record cannot be written, it is kept in memory, and written with
// the next change of the volume, when another record has made room, after a back-off, at the resync or at the end.
func (j *journal) Conclude(ctx context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	freed, err := j.conclude(ctx, intent, end)
	if freed {
		j.catchUp(ctx)
	}
	return err
}

// conclude reports whether a record was removed, which may have made room.
func (j *journal) conclude(ctx context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) (freed bool, err error) {
	// It has its turn however long that takes: nobody says again what is to be written.
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
	j.enter(journalEntry{at: e.at, record: next, stale: err != nil})
	return err == nil && next.isEmpty(), err
}

// catchUp writes the records of a manager that could not be written.
func (m *Manager) catchUp(ctx context.Context) {
	if m.journal != nil {
		m.journal.catchUp(ctx)
	}
}

// writeLate writes the records that could not be written, each time that a back-off is over, until ctx ends. It sleeps as long
// as all are.
func (m *Manager) writeLate(ctx context.Context) {
	for failures := 0; ; {
		if _, ok := m.journal.late.Get(ctx); !ok {
			return
		}
		m.journal.catchUp(ctx)
		if failures++; len(m.journal.behind()) == 0 {
			failures = 0
			continue
		}
		m.journal.late.AddAt(struct{}{}, retry.At(failures))
	}
}

// catchUp writes the records that could not be written, until one cannot.
func (j *journal) catchUp(ctx context.Context) {
	for _, h := range j.behind() {
		release, ok := j.turns.Take(ctx.Done(), h.Volume)
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

// rewrite writes a record when the disk may not have it. The caller has the turn of its volume.
func (j *journal) rewrite(h podvolume.Key) error {
	e := j.entryOf(h)
	if !e.stale {
		return nil
	}
	err := j.write(h, e.record, partAll)
	j.enter(journalEntry{at: h, record: e.record, stale: err != nil})
	if err != nil {
		j.notWritten(h, err)
	}
	return err
}

// notWritten tells of a record that could not be written, where that fails no operation.
func (j *journal) notWritten(h podvolume.Key, err error) {
	j.logger.Warn("a record could not be written, and will be later", "volume", h.Volume, "error", err)
}

// behind returns the records that could not be written.
func (j *journal) behind() []podvolume.Key {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Keys(j.stale))
}

// begin takes the turn of a volume, which release ends, and returns the entry of an intent and a record to be changed.
func (j *journal) begin(ctx context.Context, intent operationexecutor.Intent) (e journalEntry, next volumeRecord, release func(), err error) {
	release, ok := j.turns.Take(ctx.Done(), intent.VolumeName)
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

// identify fills in what every record has. The spec is recorded once; it is the same for the life of the volume.
func (j *journal) identify(r *volumeRecord, intent operationexecutor.Intent) error {
	r.Version, r.BootID, r.Volume, r.Plugin = recordVersion, j.bootID, intent.VolumeName, intent.PluginName
	if len(r.Spec) > 0 || intent.Spec == nil {
		return nil
	}
	if of := j.entry(intent.VolumeName).record; of.encoded == intent.Spec {
		r.Spec, r.encoded = of.Spec, of.encoded // of a pod that gets a record of its own
		return nil
	}
	spec, err := encodeSpec(intent.Spec, j.public(intent.PluginName))
	if err != nil {
		return fmt.Errorf("spec of volume %q cannot be recorded: %w", intent.VolumeName, err)
	}
	r.Spec, r.encoded = spec, intent.Spec
	return nil
}

// touched returns the part of the record that has to be written for a change of intent.
func (e journalEntry) touched(intent operationexecutor.Intent) part {
	if e.stale {
		return partAll
	}
	return partOf(intent)
}

// write makes the file that holds p say what r says.
func (j *journal) write(h podvolume.Key, r volumeRecord, p part) error {
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

// put writes a record, or removes it when nothing is on it.
func put(dir recordDir, key string, r volumeRecord) error {
	if r.isEmpty() {
		return dir.Remove(key)
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record of volume %q: %w", r.Volume, err)
	}
	return dir.Put(key, payload)
}

// hasAttachment reports whether this node has, or may have, attached a volume by itself. Without records it has not.
func (j *journal) hasAttachment(name v1.UniqueVolumeName) bool {
	return j != nil && j.entry(name).record.Attachment != nil
}

// entry returns the record of a volume, without the pods that have one of their own.
func (j *journal) entry(name v1.UniqueVolumeName) journalEntry {
	return j.entryOf(podvolume.Key{Volume: name})
}

func (j *journal) entryOf(h podvolume.Key) journalEntry {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.entries[h]; e != nil {
		return *e
	}
	return journalEntry{at: h}
}

// enter keeps what the files say, or should say, until no trace is left of the volume.
func (j *journal) enter(e journalEntry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trace.add(e.record)
	if e.stale {
		if len(j.stale) == 0 {
			j.late.AddAt(struct{}{}, retry.At(1))
		}
		j.stale[e.at] = struct{}{}
	} else if len(j.stale) > 0 {
		delete(j.stale, e.at)
	}
	if e.record.isEmpty() && !e.stale {
		delete(j.entries, e.at)
		return
	}
	j.entries[e.at] = &e
}

// close unlocks the directories, once what could not be written before was tried again. The records stay.
func (j *journal) close(ctx context.Context) error {
	j.catchUp(ctx)
	return errors.Join(j.runtime.Close(), j.closeState())
}

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/internal/journal"
	"github.com/volumekit/volumekit/internal/record"
)

// The defaults of [DiskOptions].
const (
	defaultMaxObjectBytes = 3 << 19 // 1.5 MiB, as much as etcd and Kubernetes take
	defaultMaxBytes       = 2 << 30
	defaultCompactBytes   = 8 << 20
)

// The sentinels of [Disk]. Match them with errors.Is.
var (
	// ErrLocked says that another process, or another store of this one, has the directory.
	ErrLocked = record.ErrLocked
	// ErrNewer says that the directory was written by a newer program, which is to go on with it.
	ErrNewer = record.ErrNewer
	// ErrDamaged says that files of the directory are not as they were written; see [DamageError].
	ErrDamaged = errors.New("damaged store")
	// ErrFull says that there is no room for a write: on the disk, or within the bounds of the store. Nothing was written, unless
	// the error matches [ErrUnsynced] as well.
	ErrFull = errors.New("no room in the store")
	// ErrUnsynced says that the disk failed to sync the journal, and that the journal could not be written again since. Each write
	// tries that first, and none is acknowledged before. The write that met the failure may be found by the next [OpenDisk].
	ErrUnsynced = errors.New("journal of the store is not synced")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("store is closed")
)

// DiskOptions are the options of [OpenDisk]. The zero value is useful.
type DiskOptions struct {
	// History is how many writes per kind are remembered for watches; 0 means 4,096.
	History int
	// Kinds are the kinds that the store keeps; nil means those of [Kinds]. A directory that has objects of another kind is not
	// opened: the error matches [ErrNewer].
	Kinds *KindTable
	// MaxObjectBytes is how large one object may be, and MaxBytes how large all are together, as JSON. Zero means 1.5 MiB and 2 GiB.
	MaxObjectBytes, MaxBytes int64
	// CompactBytes is how large the journal becomes, at least, before a snapshot takes its place; 0 means 8 MiB.
	CompactBytes int64
	// Salvage says that a damaged directory is opened with what can be read of it. Damaged files are kept under names that begin
	// with "damaged-", and no watch is resumed. Objects may be missing, or older than they were: see that nothing follows from
	// their absence before it is set.
	Salvage bool
	// Logger gets what goes wrong beside writes; nil discards it.
	Logger *slog.Logger
}

func (o DiskOptions) withDefaults() DiskOptions {
	orElse := func(given *int64, fallback int64) {
		if *given <= 0 {
			*given = fallback
		}
	}
	orElse(&o.MaxObjectBytes, defaultMaxObjectBytes)
	orElse(&o.MaxBytes, defaultMaxBytes)
	orElse(&o.CompactBytes, defaultCompactBytes)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Disk is a [Store] and a [Transactor] in one directory, for one process. Make it with [OpenDisk], and Close it.
//
// A write is on the disk when it returns, and invisible before. So kill -9 and a power cut lose no write that returned.
// Writes that come together are synced together. Reads are those of a [Memory] and do no I/O. After a restart watches
// continue where they were, as far back as the history goes. If the disk is full, or fails, a write returns an error and
// has not happened. The store continues, and writes again when there is room. If the context of a write ends during the
// write, the write may still happen. So may a write whose error matches [ErrUnsynced].
//
// What was read is not believed to be on the disk: it may come from a cache whose sync has failed. Unless the store was closed, and
// a file says so, [OpenDisk] writes the journal again; and so does the store itself after a sync that failed.
//
// Deletions have room of their own: on Linux, where the filesystem can promise it (ext4, xfs, tmpfs), the journal has reserved
// twice [DiskOptions].MaxObjectBytes that only they use, and what they leave is written anew when that makes room.
type Disk struct {
	memory  *Memory // what is on the disk
	options DiskOptions
	lock    io.Closer
	root    io.Closer
	salvage []Damage

	mu         sync.Mutex // never held over I/O
	queue      []*diskWrite
	committing bool // a goroutine is at work on the queue
	closed     bool
	committers sync.WaitGroup
	close      func() error // closes the files, once

	files journal.Files
	// snapshotting says that a goroutine writes a snapshot; the others are of the newest that is whole.
	snapshotting atomic.Bool
	snapshotSize atomic.Int64
	behind       atomic.Int64 // how large the journals are that it does not stand for, but for the last
	snapshotBase atomic.Uint64
	// What follows belongs to the committing goroutine.
	journal *diskJournal
	sizes   map[Key]int64
	total   int64
	full    bool // the last write found no room
	freed   bool // something was deleted since a snapshot was begun last
}

var _ Transactor = (*Disk)(nil)

// diskWrite is a transaction on its way.
type diskWrite struct {
	plan      *TransactionPlan
	keys      []Key
	abandoned atomic.Bool   // the caller has gone
	done      chan struct{} // closed when what follows is set
	changes   []PlannedWrite
	err       error
}

// OpenDisk opens the store in the directory at an absolute path, which is made when it is missing, with mode 0700: it may hold
// secrets. The error matches [ErrLocked] when it is open elsewhere, [ErrDamaged] when files are not as they were written, and
// [ErrNewer]; nothing was changed then. The end of a journal that was being written when the power was cut is no damage; after a
// [Disk.Close] it is. The platform must have locks: Linux and macOS do.
func OpenDisk(path string, options DiskOptions) (*Disk, error) {
	if err := absolute(path); err != nil {
		return nil, fmt.Errorf("store on disk: %w", err)
	}
	if err := record.MakeDir(path, record.Options{Sync: true}); err != nil {
		return nil, fmt.Errorf("store on disk: %w", err)
	}
	lock, err := record.Lock(path)
	if err != nil {
		return nil, fmt.Errorf("store on disk: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("store on disk: %w", errors.Join(err, lock.Close()))
	}
	s, err := openFiles(journal.Directory{Root: root}, options)
	if err != nil {
		return nil, fmt.Errorf("store on disk in %q: %w", path, errors.Join(err, root.Close(), lock.Close()))
	}
	s.root, s.lock = root, lock
	return s, nil
}

// openFiles opens the store in a directory that is locked.
func openFiles(files journal.Files, options DiskOptions) (*Disk, error) {
	s := &Disk{
		memory: NewMemory(MemoryOptions{History: options.History, Kinds: options.Kinds}), options: options.withDefaults(),
		files: files, sizes: map[Key]int64{},
	}
	s.close = sync.OnceValue(s.closeFiles)
	return s, s.open()
}

// open reads the directory and makes it ready to be written to.
func (s *Disk) open() error {
	names, err := s.files.Names()
	if err != nil {
		return err
	}
	l := newLoading(names, s.files.Read, s.memory)
	if err := l.load(); err != nil {
		return err
	}
	if len(l.damage) > 0 && !s.options.Salvage {
		return &DamageError{Damage: l.damage}
	}
	for key, size := range l.sizes {
		s.resize(key, size)
	}
	s.snapshotSize.Store(l.snapshotSize)
	if n := len(l.snapshots); n > 0 {
		s.snapshotBase.Store(l.snapshots[n-1])
	}
	if err := s.removeCloseMark(names); err != nil {
		return err
	}
	switch {
	case len(l.damage) > 0:
		err = s.salvageFrom(l)
	case len(l.journals) == 0:
		s.journal, err = createJournal(s.files, 0, s.reserve())
	default:
		err = s.continueJournal(l)
	}
	if err != nil {
		return err
	}
	return s.tidy(names, l)
}

// removeCloseMark removes the mark of a clean close. It is called before the first write that the mark does not cover.
func (s *Disk) removeCloseMark(names []string) error {
	if !slices.Contains(names, closedName) {
		return nil
	}
	return errors.Join(s.files.Unlink(closedName), s.files.Sync())
}

// continueJournal opens the newest journal to append to it. Only a clean close proves that all of it is on disk: a program that was
// killed, or whose sync failed, leaves content that can be read as well. So without the mark of a clean close, the journal is
// rewritten and synced. Earlier journals were synced before the next one was created, and snapshots before they got their names.
func (s *Disk) continueJournal(l *loading) error {
	base := l.journals[len(l.journals)-1]
	f, err := s.files.Reopen(journalName(base))
	if err != nil {
		return err
	}
	content := l.last.data[:l.last.size]
	s.journal = &diskJournal{
		Journal: journal.Continue(f, content, l.last.length, journalOptions(s.files, journalName(base))),
		name:    journalName(base), base: base,
	}
	switch {
	case l.last.size == 0:
		err = s.journal.Append(headFrame(base))
	case l.closed == nil:
		err = s.journal.Rewrite(content)
	}
	if err = errors.Join(err, s.files.Sync()); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := s.journal.MakeRoom(0, s.reserve()); err != nil {
		s.options.Logger.Warn("there is no room for deletions beside other writes", "error", err)
	}
	return nil
}

// salvaged is the number of versions that are skipped after damage. A watch must not resume at a version that meant another state.
const salvaged = 1 << 32

// salvageFrom starts a new journal and snapshot from the content that could be read. It keeps the damaged files under other names.
func (s *Disk) salvageFrom(l *loading) error {
	s.salvage = l.damage
	kept := map[string]bool{}
	for _, d := range l.damage {
		s.options.Logger.Error("a file of the store is damaged: it goes on without", "file", d.File, "offset", d.Offset, "error", d.Err)
		if kept[d.File] {
			continue
		}
		kept[d.File] = true
		err := s.files.Link(d.File, damagedPrefix+d.File)
		if err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	s.memory.version += salvaged
	for _, kind := range s.memory.kinds {
		kind.log.writes, kind.log.forgotten = nil, s.memory.version
	}
	var err error
	if s.journal, err = createJournal(s.files, s.memory.version, s.reserve()); err != nil {
		return err
	}
	size, err := writeSnapshot(s.files, s.memory.version, s.objects())
	if err != nil {
		return errors.Join(err, s.journal.Close())
	}
	s.snapshotSize.Store(size)
	s.snapshotBase.Store(s.memory.version)
	l.snapshots, l.journals = append(l.snapshots, s.memory.version), []uint64{s.memory.version}
	return nil
}

// tidy removes files that an earlier program could not remove any more: all before the newest snapshot, except one journal.
func (s *Disk) tidy(names []string, l *loading) error {
	var oldest uint64
	if chain := l.chain(); len(chain) > 0 {
		oldest = chain[0]
	}
	for _, name := range names {
		journal, isJournal := baseOf(name, journalPrefix)
		snapshot, isSnapshot := baseOf(name, snapshotPrefix)
		old := isJournal && (journal < oldest || journal > s.journal.base) || isSnapshot && snapshot < l.snapshots[len(l.snapshots)-1]
		if !old && name != unfinished {
			continue
		}
		if err := s.files.Unlink(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return errors.Join(err, s.journal.Close())
		}
	}
	return nil
}

func (s *Disk) resize(key Key, size int64) {
	s.total += size - s.sizes[key]
	s.sizes[key] = size
	if size == 0 {
		delete(s.sizes, key)
	}
}

// Salvaged returns the damage with which the store was opened; nil if there was none.
func (s *Disk) Salvaged() []Damage { return slices.Clone(s.salvage) }

// Close waits for the running writes and for a running snapshot, and unlocks the directory. Later writes fail with an error that
// matches [ErrClosed]. Reads still work, and watches end with their contexts. Every call of Close waits for the same end and returns
// the same error.
func (s *Disk) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.close()
}

func (s *Disk) closeFiles() error {
	s.committers.Wait()
	err := damaged(s.journal.Mend())
	if err == nil {
		s.writeCloseMark()
	}
	err = errors.Join(err, s.journal.Close())
	for _, c := range []io.Closer{s.root, s.lock} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// writeCloseMark writes the mark of a clean close: the whole journal is on disk. Without the mark, the next program only takes longer
// to open the store, so Close does not fail if the mark cannot be written.
func (s *Disk) writeCloseMark() {
	if err := writeClosed(s.files, closedFrame{Base: s.journal.base, Size: s.journal.Size(), Sum: s.journal.Sum()}); err != nil {
		s.options.Logger.Warn("the store is closed, and its directory does not say so", "error", err)
	}
}

// Kinds returns the kinds that the store keeps.
func (s *Disk) Kinds() *KindTable { return s.memory.table }

// Get implements [Store].
func (s *Disk) Get(ctx context.Context, key Key) (runtime.Object, error) {
	return s.memory.Get(ctx, key)
}

// List implements [Store].
func (s *Disk) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (List, error) {
	return s.memory.List(ctx, kind, namespace)
}

// Watch implements [Store], as [Memory] does.
func (s *Disk) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan Event, error) {
	return s.memory.Watch(ctx, kind, namespace, version)
}

// Create implements [Store].
func (s *Disk) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	return commitOne(ctx, s, ToCreate(obj))
}

// Update implements [Store].
func (s *Disk) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	return commitOne(ctx, s, ToUpdate(obj))
}

// Delete implements [Store].
func (s *Disk) Delete(ctx context.Context, key Key, preconditions Preconditions) error {
	_, err := commitOne(ctx, s, ToDelete(key, preconditions))
	return err
}

// Commit implements [Transactor].
func (s *Disk) Commit(ctx context.Context, t Transaction) ([]runtime.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	plan, err := s.options.Kinds.NewTransactionPlan(t)
	if err != nil {
		return nil, err
	}
	w := &diskWrite{plan: plan, keys: plan.Keys(), done: make(chan struct{})}
	if err := s.enqueue(w); err != nil {
		return nil, err
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		return nil, s.abandon(ctx, w)
	}
	if w.err != nil {
		return nil, w.err
	}
	return copies(w.changes), nil
}

// abandon stops waiting for a write, and removes it from the queue. So the queue holds only writes for which a caller
// waits.
func (s *Disk) abandon(ctx context.Context, w *diskWrite) error {
	w.abandoned.Store(true)
	s.mu.Lock()
	waiting := len(s.queue)
	s.queue = slices.DeleteFunc(s.queue, func(other *diskWrite) bool { return other == w })
	dequeued := len(s.queue) < waiting
	s.mu.Unlock()
	if dequeued {
		return fmt.Errorf("the disk is busy with other writes, and nothing was written: %w", context.Cause(ctx))
	}
	return fmt.Errorf("the disk has not answered, and the write may happen still: %w", context.Cause(ctx))
}

// enqueue has a write committed. The goroutine that does so ends when there is nothing left to do.
func (s *Disk) enqueue(w *diskWrite) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.queue = append(s.queue, w)
	if !s.committing {
		s.committing = true
		s.committers.Go(s.commitAll)
	}
	return nil
}

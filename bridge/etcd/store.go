package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// Options are the options of [New].
type Options struct {
	// Prefix is the prefix of every key of the store. A slash is added if it has none at the end. Required. No other program may use
	// the prefix.
	Prefix string
	// MaxCalls is the largest number of calls of etcd at a time, except those for leases and watches. Other calls wait. Zero means
	// 128.
	MaxCalls int
	// Kinds are the kinds that the store keeps; nil means those of [store.Kinds]. All processes with the same prefix must have the
	// same kinds.
	Kinds *store.KindTable
	// Logger logs failures that the store waits out; nil discards them.
	Logger *slog.Logger
}

// defaultMaxCalls keeps an etcd busy that takes some milliseconds for a call. So many calls are answered within attemptTime.
const defaultMaxCalls = 128

// Store is a [store.Store], a [store.Transactor] and a [store.Lessor] in an etcd. Make it with [New]. Its methods may be called
// from several goroutines at once.
type Store struct {
	client *clientv3.Client
	kinds  *store.KindTable
	keys   keys
	codec  codec
	slots  slots
	logger *slog.Logger

	identities identities
}

var (
	_ store.Store      = (*Store)(nil)
	_ store.Transactor = (*Store)(nil)
	_ store.Lessor     = (*Store)(nil)
)

// New returns the store below a prefix. It does no I/O. The caller must close the client after the last user of the store has ended. An
// error matches [store.ErrInvalid].
func New(client *clientv3.Client, options Options) (*Store, error) {
	if client == nil || strings.Trim(options.Prefix, "/") == "" {
		return nil, fmt.Errorf("etcd store: give a client and a prefix of the store's own: %w", store.ErrInvalid)
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.MaxCalls <= 0 {
		options.MaxCalls = defaultMaxCalls
	}
	return &Store{
		slots: make(slots, options.MaxCalls), client: client, keys: keys{strings.TrimSuffix(options.Prefix, "/") + "/"},
		kinds: options.Kinds, codec: codec{options.Kinds.NewScheme()}, logger: options.Logger,
	}, nil
}

// Kinds returns the kinds that the store keeps.
func (s *Store) Kinds() *store.KindTable { return s.kinds }

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	if err := s.kinds.ValidateKey(key); err != nil {
		return nil, err
	}
	response, err := s.get(ctx, s.keys.ofObject(key))
	if err != nil {
		return nil, classify(ctx, "read "+key.String(), err)
	}
	if len(response.Kvs) == 0 {
		return nil, fmt.Errorf("%s: %w", key, store.ErrNotFound)
	}
	obj, at, err := s.codec.decode(key.Kind, response.Kvs[0].Value, response.Kvs[0].ModRevision)
	if err != nil {
		return nil, err
	}
	s.identities.note(key, at, obj)
	return obj, nil
}

// Create implements [store.Store].
func (s *Store) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	return s.commitOne(ctx, store.ToCreate(obj))
}

// Update implements [store.Store].
func (s *Store) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	return s.commitOne(ctx, store.ToUpdate(obj))
}

// Delete implements [store.Store].
func (s *Store) Delete(ctx context.Context, key store.Key, preconditions store.Preconditions) error {
	_, err := s.commitOne(ctx, store.ToDelete(key, preconditions))
	return err
}

func (s *Store) commitOne(ctx context.Context, w store.Write) (runtime.Object, error) {
	objects, err := s.Commit(ctx, store.Transaction{Writes: []store.Write{w}})
	if err != nil {
		return nil, err
	}
	return objects[0], nil
}

// pageSize is how many objects one request reads.
const pageSize = 500

// List implements [store.Store]. It reads all pages of a long list at one revision.
func (s *Store) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if _, err := s.kinds.Namespaced(kind); err != nil {
		return store.List{}, err
	}
	prefix := s.keys.ofObjects(kind, namespace)
	end := clientv3.GetPrefixRangeEnd(prefix)
	var objects []store.Object
	revision := int64(0) // the newest, at first
	for from, more := prefix, true; more; {
		response, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(pageSize))
		if errors.Is(err, rpctypes.ErrCompacted) {
			return s.List(ctx, kind, namespace) // The reader was slow.
		}
		if err != nil {
			return store.List{}, classify(ctx, "list "+kind.Kind, err)
		}
		if revision == 0 {
			revision = response.Header.Revision
		}
		for _, kv := range response.Kvs {
			obj, _, err := s.codec.decode(kind, kv.Value, kv.ModRevision)
			if err != nil {
				return store.List{}, err
			}
			objects = append(objects, obj)
			from = string(kv.Key) + "\x00"
		}
		more = response.More
	}
	return listOf(objects, revision), nil
}

// listOf sorts objects by namespace and name, which is not the order of etcd's keys.
func listOf(objects []store.Object, revision int64) store.List {
	slices.SortFunc(objects, func(a, b store.Object) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	list := store.List{Items: make([]runtime.Object, 0, len(objects)), ResourceVersion: after(revision).String()}
	for _, obj := range objects {
		list.Items = append(list.Items, obj)
	}
	return list
}

// howRoomIsMade says how to make room in a full etcd, also in one that its live data fills. Until then, etcd only deletes.
const howRoomIsMade = "delete objects without finalizers, which works while etcd is full, then compact etcd, defragment every member and " +
	"disarm the alarm; or start the members with a larger --quota-backend-bytes and disarm the alarm"

// classify makes an error of etcd's client match the sentinels of package store, and names what failed.
func classify(ctx context.Context, what string, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), ctx.Err()))
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%s: %s: %w: %w", what, howRoomIsMade, err, store.ErrFull)
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%s: more writes than etcd does at once (--max-txn-ops): %w: %w", what, err, store.ErrInvalid)
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("%s: larger than etcd takes (--max-request-bytes): %w: %w", what, err, store.ErrInvalid)
	}
	return fmt.Errorf("%s: %w", what, err)
}

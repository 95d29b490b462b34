package etcd

import (
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// This file spares reads before writes. etcd compares revisions itself, so that a wrong guess writes nothing.

// expect returns what a transaction finds if it succeeds: what is created is not there, what is updated is what this store has read or
// written at that version, and what must be at a version is. It reports false where that is not enough to decide.
func (s *Store) expect(t store.Transaction, keys []store.Key, leases []store.Lease) (seen, bool) {
	if len(t.Writes) == 0 {
		return seen{}, false
	}
	var expected seen
	for i, w := range t.Writes {
		if !s.expectWrite(&expected, keys[i], w) {
			return seen{}, false
		}
	}
	for _, c := range t.Conditions {
		if !s.expectCondition(&expected, c) {
			return seen{}, false
		}
	}
	for _, lease := range leases {
		revision := int64(lease.Token) //nolint:gosec // A token is a revision.
		expected.leases = append(expected.leases, revision)
		expected.unchanged = append(expected.unchanged, clientv3.Compare(clientv3.ModRevision(s.keys.ofLease(lease.Name)), "=", revision))
	}
	return expected, true
}

func (s *Store) expectWrite(expected *seen, key store.Key, w store.Write) bool {
	switch w.Kind {
	case store.WriteCreate:
		expected.add(s.keys.ofObject(key), nil, 0)
		return true
	case store.WriteUpdate:
		known, ok := s.identities.find(key, w.Object)
		if ok {
			expected.add(s.keys.ofObject(key), known.object(), known.at.revision)
		}
		return ok
	case store.WriteDelete: // What the object was last is to be written.
	}
	return false
}

func (s *Store) expectCondition(expected *seen, c store.ObjectCondition) bool {
	if c.Absent {
		expected.add(s.keys.ofObject(c.Key), nil, 0)
		return true
	}
	at, err := parseVersion(c.Preconditions.ResourceVersion)
	if err != nil || at.revision == 0 || c.Preconditions.UID != "" {
		return false
	}
	expected.add(s.keys.ofObject(c.Key), identity{at: at}.object(), at.revision)
	return true
}

// add says that the key of an object is at a revision; zero is that of a key that is not there.
func (s *seen) add(key string, obj store.Object, revision int64) {
	s.objects = append(s.objects, obj)
	s.unchanged = append(s.unchanged, clientv3.Compare(clientv3.ModRevision(key), "=", revision))
}

// identity is what an update must know of an object that it replaces.
type identity struct {
	at         version
	uid        types.UID
	created    metav1.Time
	deleted    *metav1.Time
	finalizers []string
}

func (i identity) object() store.Object {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: i.at.String(), UID: i.uid, CreationTimestamp: i.created, DeletionTimestamp: i.deleted, Finalizers: i.finalizers,
	}}
}

// identities are those of objects that were read and written last: of so many at least as identitiesKept says, and of twice as many
// at most. The zero value has none. Methods may be called from several goroutines at once.
type identities struct {
	mu            sync.Mutex // held over nothing that waits
	newer, before map[store.Key]identity
}

// identitiesKept is enough for a burst of writes of which each object is written twice.
const identitiesKept = 1 << 14

// note keeps the identity of an object as it is at a version.
func (i *identities) note(key store.Key, at version, obj store.Object) {
	known := identity{at: at, uid: obj.GetUID(), created: obj.GetCreationTimestamp()}
	if deleted := obj.GetDeletionTimestamp(); deleted != nil {
		known.deleted = deleted.DeepCopy()
	}
	known.finalizers = append(known.finalizers, obj.GetFinalizers()...)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.newer == nil || len(i.newer) >= identitiesKept {
		i.newer, i.before = map[store.Key]identity{}, i.newer
	}
	i.newer[key] = known
}

// find returns the identity of the object of a key at the version of obj, and false when that is not known.
func (i *identities) find(key store.Key, obj runtime.Object) (identity, bool) {
	meta, ok := obj.(store.Object)
	if !ok {
		return identity{}, false
	}
	at, err := parseVersion(meta.GetResourceVersion())
	if err != nil {
		return identity{}, false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, ok := i.newer[key]; ok && known.at == at {
		return known, true
	}
	known, ok := i.before[key]
	return known, ok && known.at == at
}

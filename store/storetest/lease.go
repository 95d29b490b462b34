package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// leaseCases hold the leases that go with a store: its own, or those that are kept as objects in it.
func leaseCases() []testCase {
	return []testCase{
		{"ALeaseHasOneHolder", withLeases(testOneHolder)},
		{"AReleasedLeaseIsFree", withLeases(testRelease)},
		{"AHeldLeaseIsWaitedFor", withLeases(testHeldLease)},
		{"AnExpiredLeaseIsAnothers", withLeases(testExpiredLease)},
		{"ARenewedLeaseLives", withLeases(testRenewedLease)},
		{"AHolderTakesItsLeaseAgain", withLeases(testSameHolder)},
		{"LeasesAreApart", withLeases(testLeasesApart)},
		{"AMalformedRequestIsInvalid", withLeases(testInvalidRequest)},
		{"ALostLeaseStopsATransaction", testFencing},
	}
}

func withLeases(run func(t *testing.T, l store.Lessor)) func(*testing.T, store.Store) {
	return func(t *testing.T, s store.Store) { run(t, store.LessorOf(s)) }
}

// long is a time to live that ends in no test, short one that is waited for.
const (
	long  = time.Hour
	short = time.Second
)

func request(holder string, ttl time.Duration) store.LeaseRequest {
	return store.LeaseRequest{Name: types.NamespacedName{Namespace: "leases", Name: "leader"}, Holder: holder, TTL: ttl}
}

// acquire takes a lease, which must come to be free.
func acquire(t *testing.T, l store.Lessor, r store.LeaseRequest) store.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lease, err := l.AcquireLease(ctx, r)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	if lease.Name != r.Name || lease.Holder != r.Holder || lease.Token == 0 || lease.Expires.IsZero() {
		t.Fatalf("the lease is %+v", lease)
	}
	return lease
}

func release(t *testing.T, l store.Lessor, lease store.Lease) {
	t.Helper()
	if err := l.ReleaseLease(t.Context(), lease); err != nil {
		t.Fatalf("release: %v", err)
	}
}

// testOneHolder has many take a lease one after the other: none while another has it, each with a greater token.
func testOneHolder(t *testing.T, l store.Lessor) {
	var holders atomic.Int32
	var token atomic.Uint64
	wins := together(func(i int) bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		lease, err := l.AcquireLease(ctx, request(fmt.Sprintf("holder-%d", i), long))
		if err != nil {
			t.Error(err)
			return false
		}
		if n := holders.Add(1); n != 1 {
			t.Errorf("%d hold the lease", n)
		}
		if before := token.Swap(lease.Token); before >= lease.Token {
			t.Errorf("token %d comes after %d", lease.Token, before)
		}
		holders.Add(-1)
		if err := l.ReleaseLease(t.Context(), lease); err != nil {
			t.Error(err)
		}
		return true
	})
	if wins != writers {
		t.Errorf("%d of %d came to hold the lease", wins, writers)
	}
}

func testRelease(t *testing.T, l store.Lessor) {
	first := acquire(t, l, request("first", long))
	release(t, l, first)
	_, err := l.RenewLease(t.Context(), first)
	wantError(t, err, store.ErrLeaseLost)
	second := acquire(t, l, request("second", long))
	if second.Token <= first.Token {
		t.Errorf("token %d comes after %d", second.Token, first.Token)
	}
	release(t, l, first) // It is another's by now: nothing is done.
	if _, err := l.RenewLease(t.Context(), second); err != nil {
		t.Errorf("who had the lease before has taken it away: %v", err)
	}
}

func testHeldLease(t *testing.T, l store.Lessor) {
	acquire(t, l, request("first", long))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := l.AcquireLease(ctx, request("second", long))
	wantError(t, err, context.DeadlineExceeded)
	wantError(t, err, store.ErrLeaseHeld)
	cancel()
	_, err = l.AcquireLease(ctx, request("second", long))
	if err == nil {
		t.Fatal("a lease is given to a context that has ended")
	}
}

func testExpiredLease(t *testing.T, l store.Lessor) {
	began := time.Now()
	first := acquire(t, l, request("first", short))
	second := acquire(t, l, request("second", long))
	if took := time.Since(began); took < short {
		t.Errorf("the lease was taken after %v of %v", took, short)
	}
	if time.Now().Before(first.Expires) || second.Token <= first.Token {
		t.Errorf("%+v was taken as %+v", first, second)
	}
	_, err := l.RenewLease(t.Context(), first)
	wantError(t, err, store.ErrLeaseLost)
}

// testRenewedLease renews a lease until it is older than it could become without.
func testRenewedLease(t *testing.T, l store.Lessor) {
	const ttl = 3 * short
	lease := acquire(t, l, request("first", ttl))
	token, expires := lease.Token, lease.Expires
	lease, err := l.RenewLease(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	if lease.Token != token || !lease.Expires.After(expires) || lease.TTL != ttl {
		t.Errorf("renewed, it is %+v", lease)
	}
	release(t, l, lease)
}

func testSameHolder(t *testing.T, l store.Lessor) {
	first := acquire(t, l, request("first", long))
	again := acquire(t, l, request("first", long))
	if again.Token <= first.Token {
		t.Errorf("token %d comes after %d", again.Token, first.Token)
	}
	_, err := l.RenewLease(t.Context(), first)
	wantError(t, err, store.ErrLeaseLost)
	if _, err := l.RenewLease(t.Context(), again); err != nil {
		t.Error(err)
	}
}

func testLeasesApart(t *testing.T, l store.Lessor) {
	acquire(t, l, request("first", long))
	other := request("second", long)
	other.Name.Name = "other"
	acquire(t, l, other)
	elsewhere := request("third", long)
	elsewhere.Name.Namespace = "elsewhere"
	acquire(t, l, elsewhere)
}

func testInvalidRequest(t *testing.T, l store.Lessor) {
	for name, r := range map[string]store.LeaseRequest{
		"no name":   {Holder: "first", TTL: long},
		"no holder": request("", long),
		"no time":   request("first", 0),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := l.AcquireLease(t.Context(), r)
			wantError(t, err, store.ErrInvalid)
		})
	}
}

// testFencing has a holder write that does not know yet that it holds nothing any more.
func testFencing(t *testing.T, s store.Store) {
	withTransactions(func(t *testing.T, s store.Transactor) {
		l := store.LessorOf(s)
		first := acquire(t, l, request("first", long))
		write := func(lease store.Lease, name string) error {
			_, err := s.Commit(t.Context(), store.Transaction{
				Leases: []store.Lease{lease}, Writes: []store.Write{store.ToCreate(newVolume(name))},
			})
			return err
		}
		if err := write(first, "one"); err != nil {
			t.Fatalf("the holder cannot write: %v", err)
		}
		renewed, err := l.RenewLease(t.Context(), first)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(write(first, "two"), write(renewed, "three")); err != nil {
			t.Fatalf("after the lease was renewed: %v", err)
		}
		release(t, l, renewed)
		wantError(t, write(renewed, "four"), store.ErrLeaseLost)
		second := acquire(t, l, request("second", long))
		wantError(t, write(renewed, "five"), store.ErrLeaseLost)
		if err := write(second, "six"); err != nil {
			t.Fatal(err)
		}
		acquire(t, l, request("second", long))
		wantError(t, write(second, "seven"), store.ErrLeaseLost) // the same holder, another token
		_, err = s.Get(t.Context(), volumeKey("five"))
		wantError(t, err, store.ErrNotFound)
	})(t, s)
}

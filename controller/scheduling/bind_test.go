package scheduling

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// plain is a store without transactions.
type plain struct{ store.Store }

// binding is a Bind that runs.
type binding struct {
	w     *world
	ended chan error
}

func (w *world) bind(ctx context.Context, r *Reservation) *binding {
	b := &binding{w: w, ended: make(chan error, 1)}
	go func() { b.ended <- r.Bind(ctx) }()
	synctest.Wait()
	return b
}

func (b *binding) requireRuns() {
	b.w.t.Helper()
	synctest.Wait()
	select {
	case err := <-b.ended:
		require.Fail(b.w.t, "Bind has returned", "%v", err)
	default:
	}
}

// end returns what Bind has returned without any time going by.
func (b *binding) end() error {
	b.w.t.Helper()
	synctest.Wait()
	select {
	case err := <-b.ended:
		return err
	default:
		require.Fail(b.w.t, "Bind still runs")
		return nil
	}
}

// finish does what a controller does with a claim that has a volume.
func (w *world) finish(claim, pv string) {
	w.t.Helper()
	change(w, newClaim(claim), boundTo(pv))
}

func (w *world) claim(name string) *v1.PersistentVolumeClaim {
	w.t.Helper()
	claim, err := store.Get[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "default", name)
	require.NoError(w.t, err)
	return claim
}

func (w *world) volume(name string) *v1.PersistentVolume {
	w.t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](w.t.Context(), w.store, "", name)
	require.NoError(w.t, err)
	return pv
}

func TestReserveAndBind(t *testing.T) {
	both := newPod("p", "data", "new")
	unbound := list(newClaim("data"), newClaim("new", ofClass("made")), newVolume("v", atNode("node-1", "node-2")))
	begin := func(w *world) (*Reservation, *binding) {
		r := w.reserve(both, "node-1")
		return r, w.bind(w.t.Context(), r)
	}
	requireAnew := func(w *world, b *binding, words string) {
		w.t.Helper()
		err := b.end()
		require.ErrorIs(w.t, err, ErrPlaceAnew)
		require.ErrorContains(w.t, err, words)
	}
	runRows(t, []rowTest{
		{"37 what is reserved", unbound, func(w *world) {
			r := w.reserve(both, "node-1")
			require.Empty(w.t, w.claim("data").Annotations, "nothing is written")
			require.Equal(w.t, "node-1", r.Node())
			b := w.bind(w.t.Context(), r)
			require.Equal(w.t, "data", w.volume("v").Spec.ClaimRef.Name)
			require.Equal(w.t, types.UID("uid-data"), w.volume("v").Spec.ClaimRef.UID)
			require.Contains(w.t, w.volume("v").Annotations, objects.AnnBoundByController)
			require.Equal(w.t, "node-1", w.claim("new").Annotations[objects.AnnSelectedNode])
			require.NotContains(w.t, w.claim("data").Annotations, objects.AnnSelectedNode)
			r.Release()
			requireAnew(w, b, "ended")
		}},
		{"37 a volume that a user has chosen", list(newClaim("data"), newVolume("v", refTo("data", ""))), func(w *world) {
			r := w.reserve(newPod("p", "data"), "node-1")
			b := w.bind(w.t.Context(), r)
			require.Equal(w.t, types.UID("uid-data"), w.volume("v").Spec.ClaimRef.UID)
			require.NotContains(w.t, w.volume("v").Annotations, objects.AnnBoundByController)
			w.finish("data", "v")
			require.NoError(w.t, b.end())
		}},
		{"38 what was chosen has changed", unbound, func(w *world) {
			r := w.reserve(both, "node-1")
			w.stop() // what comes now is not seen
			change(w, newVolume("v"), refTo("other", "uid-other"))
			err := r.Bind(w.t.Context())
			require.ErrorIs(w.t, err, ErrPlaceAnew)
			require.ErrorIs(w.t, err, store.ErrConflict)
			require.NotContains(w.t, w.claim("new").Annotations, objects.AnnSelectedNode, "all or nothing")
			w.start(Options{})
		}},
		{"39 later pods see what is reserved", unbound, func(w *world) {
			r := w.reserve(both, "node-1")
			w.requireRefused(newPod("q", "data"), "node-3", InUseOnOtherNode)
			w.requireFits(newPod("q", "new"), "node-1")
			w.create(newClaim("third"))
			change(w, newNode("node-1"), func(*v1.Node) {})
			w.requireFits(newPod("q", "third"))
			q := w.reserve(newPod("q", "data"), "node-1")
			r.Release()
			w.requireFits(newPod("r", "third"))
			q.Release()
			w.requireFits(newPod("r", "third"), "node-1", "node-2")
		}},
		{"40 what is reserved gives way to the store", unbound, func(w *world) {
			r := w.reserve(both, "node-1")
			w.finish("data", "another")
			w.create(newClaim("third"))
			change(w, newNode("node-1"), func(*v1.Node) {})
			w.requireFits(newPod("q", "third"), "node-1", "node-2")
			r.Release()
		}},
		{"41 a release after a bind that was broken off", unbound, func(w *world) {
			r := w.reserve(both, "node-1")
			ctx, cancel := context.WithCancel(w.t.Context())
			b := w.bind(ctx, r)
			b.requireRuns()
			cancel()
			require.ErrorIs(w.t, b.end(), context.Canceled)
			r.Release()
			r.Release()
			require.NotNil(w.t, w.volume("v").Spec.ClaimRef, "what was written stays")
			w.requireFits(both, "node-1")
			again := w.reserve(both, "node-1")
			require.Equal(w.t, map[types.NamespacedName]string{nn("data"): "v"}, again.Volumes())
			b = w.bind(w.t.Context(), again)
			w.finish("data", "v")
			b.requireRuns()
			w.create(newVolume("made-for-new", atNode("node-1")))
			w.finish("new", "made-for-new")
			require.NoError(w.t, b.end())
		}},
		{"43 no time goes by once all are bound", unbound, func(w *world) {
			_, b := begin(w)
			before := time.Now()
			w.finish("data", "v")
			w.create(newVolume("made-for-new"))
			w.finish("new", "made-for-new")
			require.NoError(w.t, b.end())
			require.Equal(w.t, before, time.Now())
		}},
		{"44 the pod is deleted", objectsOf(unbound, list(both)), func(w *world) {
			_, b := begin(w)
			w.delete(both)
			require.ErrorIs(w.t, b.end(), ErrPodGone)
		}},
		{"44 the node is gone", unbound, func(w *world) {
			_, b := begin(w)
			w.delete(newNode("node-1"))
			requireAnew(w, b, `node "node-1" is gone`)
		}},
		{"44 the volume is gone", unbound, func(w *world) {
			_, b := begin(w)
			w.delete(newVolume("v"))
			requireAnew(w, b, `volume "v" for claim "default/data" is gone`)
		}},
		{"44 the claim is gone", unbound, func(w *world) {
			_, b := begin(w)
			w.delete(newClaim("new"))
			requireAnew(w, b, `claim "default/new" is gone`)
		}},
		{"44 the volume does not name the claim any more", unbound, func(w *world) {
			_, b := begin(w)
			change(w, newVolume("v"), func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" })
			requireAnew(w, b, `volume "v" does not name claim`)
		}},
		{"44 the provisioner gives up", unbound, func(w *world) {
			r, b := begin(w)
			change(w, newClaim("new"), func(c *v1.PersistentVolumeClaim) { delete(c.Annotations, objects.AnnSelectedNode) })
			requireAnew(w, b, "not made for the node any more")
			r.Release()
			w.requireFits(both, "node-1", "node-2")
		}},
		{"44 the new volume is elsewhere", unbound, func(w *world) {
			_, b := begin(w)
			w.create(newVolume("made-for-new", atNode("node-2")))
			w.finish("new", "made-for-new")
			requireAnew(w, b, "which the node cannot have")
		}},
		{"45 the new volume is not seen yet", list(newClaim("new", ofClass("made"))), func(w *world) {
			b := w.bind(w.t.Context(), w.reserve(newPod("p", "new"), "node-1"))
			w.finish("new", "made-for-new")
			b.requireRuns()
			w.create(newVolume("made-for-new"))
			require.NoError(w.t, b.end())
		}},
		{"46 the timeout", unbound, func(w *world) {
			r, b := begin(w)
			before := time.Now()
			err := <-b.ended
			require.ErrorIs(w.t, err, context.DeadlineExceeded)
			require.NotErrorIs(w.t, err, ErrPlaceAnew)
			require.Equal(w.t, defaultBindTimeout, time.Since(before))
			r.Release()
		}},
		{"47 all bound", bound("data", "v"), func(w *world) {
			require.NoError(w.t, w.reserve(newPod("p", "data"), "node-1").Bind(w.t.Context()))
			require.NotContains(w.t, w.claim("data").Annotations, annPlacing)
		}},
		{"48 nothing to bind", nil, func(w *world) {
			require.NoError(w.t, w.reserve(newPod("p"), "node-1").Bind(w.t.Context()))
			_, err := w.s.Reserve(newPod("p"), "node-1")
			require.ErrorIs(w.t, err, ErrReserved)
		}},
	})
	t.Run("46 a negative timeout", func(t *testing.T) {
		require.Error(t, New(store.NewMemory(store.MemoryOptions{}), Options{BindTimeout: -1}).Run(t.Context()))
	})
}

// failing is a store without transactions of which a write fails.
type failing struct {
	store.Store
	left int
}

var errFull = errors.New("no room")

func (f *failing) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if f.left == 0 {
		return nil, errFull
	}
	f.left--
	return f.Store.Update(ctx, obj)
}

// Row 42.
func TestWithoutTransactionsTheFirstFailureEndsBind(t *testing.T) {
	objects := objectsOf(threeNodes(), list(newClass("late"), newClass("made", makes), newClaim("data"), newClaim("new", ofClass("made")), newVolume("v", atNode("node-1"))))
	for writes := range 5 {
		inWorld(t, Options{}, objects, func(w *world) {
			w.stop()
			w.store = &failing{Store: w.store, left: writes}
			w.start(Options{})
			r := w.reserve(newPod("p", "data", "new"), "node-1")
			b := w.bind(w.t.Context(), r)
			if writes < 4 {
				require.ErrorIs(t, b.end(), errFull)
			} else {
				b.requireRuns()
			}
			r.Release()
			if writes == 4 {
				require.ErrorIs(t, b.end(), ErrPlaceAnew)
			}
			if writes >= 3 {
				require.NotNil(t, w.volume("v").Spec.ClaimRef, "what was written stays")
			}
			w.store = w.store.(*failing).Store
			w.requireFits(newPod("p", "data", "new"), "node-1")
		})
	}
}

func TestOfTwoSchedulersOneBindsThePod(t *testing.T) {
	base := objectsOf(threeNodes(), list(
		newClass("late"), newClass("made", makes), newClaim("a"), newClaim("b"), newClaim("c", ofClass("made")),
		newVolume("a1", atNode("node-1")), newVolume("b1", atNode("node-1")), newVolume("a2", atNode("node-2")), newVolume("b2", atNode("node-2")),
	))
	for name, wrap := range map[string]func(store.Store) store.Store{
		"with transactions":    func(s store.Store) store.Store { return s },
		"without transactions": func(s store.Store) store.Store { return plain{s} },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Options{}, base, func(w *world) {
				w.stop()
				w.store = wrap(w.store)
				w.start(Options{})
				other := &world{t: w.t, store: w.store}
				other.start(Options{})
				defer other.stop()
				p := newPod("p", "a", "b", "c")
				first, second := w.reserve(p, "node-1"), other.reserve(p, "node-2")
				var ended [2]*binding
				for i, r := range []*Reservation{first, second} {
					ended[i] = &binding{w: w, ended: make(chan error, 1)}
					go func() { ended[i].ended <- r.Bind(w.t.Context()) }()
				}
				synctest.Wait()
				winner, loser, pvs := ended[0], ended[1], "1"
				if w.claim("c").Annotations[objects.AnnSelectedNode] == "node-2" {
					winner, loser, pvs = ended[1], ended[0], "2"
				}
				require.ErrorIs(t, loser.end(), ErrPlaceAnew)
				winner.requireRuns()
				lost := map[string]string{"1": "2", "2": "1"}[pvs]
				assert.Nil(t, w.volume("a"+lost).Spec.ClaimRef)
				assert.Nil(t, w.volume("b"+lost).Spec.ClaimRef)
				w.finish("a", "a"+pvs)
				w.finish("b", "b"+pvs)
				w.create(newVolume("c-made", atNode("node-"+pvs)))
				w.finish("c", "c-made")
				require.NoError(t, winner.end())
			})
		})
	}
}

func TestAReservationEndsWithItsPod(t *testing.T) {
	p := newPod("p", "data")
	inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("late"), newClaim("data"), newClaim("more"), newVolume("v"), p)), func(w *world) {
		w.reserve(p, "node-1")
		w.requireFits(newPod("q", "more"))
		w.delete(p)
		w.requireFits(newPod("q", "more"), everywhere...)
		require.Empty(t, w.s.index.reservations)
		require.Empty(t, w.s.index.claimReservations)
		require.Empty(t, w.s.index.reservedBy)
		require.Empty(t, w.s.index.podsOf)
	})
}

// told collects the changes that a scheduler tells.
type told struct {
	mu      sync.Mutex
	changes []ClusterEvent
}

func (t *told) options() Options {
	return Options{Changed: func(c ClusterEvent) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.changes = append(t.changes, c)
	}}
}

// take returns what was told since the last call.
func (t *told) take() []ClusterEvent {
	synctest.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	changes := t.changes
	t.changes = nil
	return changes
}

func TestAReservationThatEndsWithItsPodIsTold(t *testing.T) {
	p := newPod("p", "data")
	for name, end := range map[string]func(w *world){
		"the pod is deleted":       func(w *world) { w.delete(p) },
		"the pod is on another":    func(w *world) { change(w, p, func(p *v1.Pod) { on(p, "node-2") }) },
		"the pod has ended":        func(w *world) { change(w, p, func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }) },
		"the pod is on its node":   func(w *world) { change(w, p, func(p *v1.Pod) { on(p, "node-1") }) },
		"another pod has the name": func(w *world) { w.delete(p); other := newPod("p", "data"); other.UID = "other"; w.create(other) },
	} {
		t.Run(name, func(t *testing.T) {
			var told told
			inWorld(t, told.options(), objectsOf(threeNodes(), list(newClass("late"), newClaim("data"), newVolume("v"), p)), func(w *world) {
				w.reserve(p, "node-1")
				told.take()
				end(w)
				released := ClusterEvent{Kind: ReservationReleased, Name: nn("p"), Node: "node-1"}
				if name == "the pod is on its node" {
					require.Empty(t, told.take())
				} else {
					require.Equal(t, []ClusterEvent{released}, told.take())
				}
			})
		})
	}
}

// What was made is taken off for a minute at most. A pod that was refused for it is woken then, without any other change.
func TestTheEndOfTheMinuteIsTold(t *testing.T) {
	var told told
	base := objectsOf(threeNodes(), list(
		newClass("made", makes), newDriver(), newCapacity("node-1", "60Gi"), newClaim("data", ofClass("made"), asks("50Gi")), newClaim("more", ofClass("made"), asks("50Gi")),
	))
	raised := []ClusterEvent{{Kind: CapacityRaised, Name: nn("node-1"), Class: "made"}}
	more := newPod("q", "more")
	place := func(w *world) {
		r := w.reserve(newPod("p", "data"), "node-1")
		w.create(newVolume("made-for-data", holding("50Gi"), volumeClass("made"), atNode("node-1"), refTo("data", "uid-data"), phase(v1.VolumeBound)))
		w.finish("data", "made-for-data")
		r.Release()
		told.take()
	}
	inWorld(t, told.options(), base, func(w *world) {
		place(w)
		why := w.requireRefused(more, "node-1", NoCapacity)
		require.Equal(t, []Reason{NoCapacity}, why.Reasons)
		result, err := w.s.Find(more)
		require.NoError(t, err)
		time.Sleep(recentTime - time.Nanosecond)
		require.Empty(t, told.take())
		time.Sleep(time.Nanosecond)
		require.Equal(t, raised, told.take())
		require.True(t, result.Waits().EndedBy(raised[0]))
		w.requireFits(more, "node-1")
		time.Sleep(24 * time.Hour)
		require.Empty(t, told.take())
		require.Empty(t, w.s.index.capacities.expiries)
	})
	inWorld(t, told.options(), base, func(w *world) { // the capacity is published anew before
		place(w)
		change(w, newCapacity("node-1", ""), func(c *storagev1.CSIStorageCapacity) { c.Capacity = ptr(resource.MustParse("10Gi")) })
		require.Empty(t, told.take())
		time.Sleep(24 * time.Hour)
		require.Empty(t, told.take())
	})
}

// Rows 63 to 72: which change has a refused pod tried again.
func TestWaits(t *testing.T) {
	type change struct {
		ClusterEvent
		helps bool
	}
	waits := Waits{reasons: 1 << NoCapacity, claims: []claimName{{name: nn("data"), class: "made"}}, drivers: []string{"csi.example"}}
	limited := Waits{reasons: 1 << AttachLimit, claims: waits.claims, drivers: waits.drivers}
	missing := (&PodError{Reason: ClaimMissing, Claim: nn("data")}).Waits()
	boundWaits := Waits{reasons: 1 << NodeAffinity, claims: []claimName{{name: nn("data"), volume: "v"}}}
	for name, tt := range map[string]struct {
		waits   Waits
		changes []change
	}{
		"63 claims": {missing, []change{{ClusterEvent{Kind: ClaimChanged, Name: nn("data")}, true}, {ClusterEvent{Kind: ClaimChanged, Name: nn("other")}, false}}},
		"64 volumes": {waits, []change{
			{ClusterEvent{Kind: VolumeChanged, Class: "made"}, true}, {ClusterEvent{Kind: VolumeChanged, Name: types.NamespacedName{Name: "w"}, Class: "other"}, false}, {ClusterEvent{Kind: VolumeChanged, Claim: nn("data")}, true},
		}},
		"64 bound volumes": {boundWaits, []change{{ClusterEvent{Kind: VolumeChanged, Name: types.NamespacedName{Name: "v"}}, true}, {ClusterEvent{Kind: VolumeChanged, Name: types.NamespacedName{Name: "w"}}, false}}},
		"65 classes":       {waits, []change{{ClusterEvent{Kind: ClassChanged, Name: types.NamespacedName{Name: "made"}}, true}, {ClusterEvent{Kind: ClassChanged, Name: types.NamespacedName{Name: "late"}}, false}}},
		"65a attributes": {Waits{reasons: 1 << NoAttributesClass, claims: []claimName{{name: nn("data"), attributes: "gold"}}}, []change{
			{ClusterEvent{Kind: AttributesClassChanged, Name: types.NamespacedName{Name: "gold"}}, true}, {ClusterEvent{Kind: AttributesClassChanged, Name: types.NamespacedName{Name: "lead"}}, false},
		}},
		"66 nodes":                   {waits, []change{{ClusterEvent{Kind: NodeChanged}, true}}},
		"66 not for pods as a whole": {missing, []change{{ClusterEvent{Kind: NodeChanged}, false}}},
		"67 limits":                  {limited, []change{{ClusterEvent{Kind: LimitRaised, Driver: "csi.example"}, true}, {ClusterEvent{Kind: LimitRaised, Driver: "other"}, false}}},
		"68 capacities":              {waits, []change{{ClusterEvent{Kind: CapacityRaised, Class: "made"}, true}, {ClusterEvent{Kind: CapacityRaised, Class: "other"}, false}}},
		"69 drivers":                 {waits, []change{{ClusterEvent{Kind: DriverChanged}, true}}},
		"70 pods":                    {limited, []change{{ClusterEvent{Kind: PodLeft}, true}}},
		"70 pods with the claim": {Waits{reasons: 1 << InUseByPod, claims: waits.claims}, []change{
			{ClusterEvent{Kind: PodLeft, Claims: []types.NamespacedName{nn("data")}}, true}, {ClusterEvent{Kind: PodLeft, Claims: []types.NamespacedName{nn("other")}}, false},
		}},
		"71 attachments": {limited, []change{{ClusterEvent{Kind: AttachmentGone}, true}}},
		"72 releases":    {waits, []change{{ClusterEvent{Kind: ReservationReleased}, true}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range tt.changes {
				assert.Equal(t, c.helps, tt.waits.EndedBy(c.ClusterEvent), "%+v", c.ClusterEvent)
			}
		})
	}
}

// What the store tells becomes the changes that end a wait: of each row the objects, and nothing where nothing got better.
func TestChangesAreTold(t *testing.T) {
	var told told
	inWorld(t, told.options(), objectsOf(threeNodes(), list(newCSINode("node-1", 1), newCapacity("node-1", "10Gi"), newDriver())), func(w *world) {
		kinds := func(do func()) []ClusterEventKind {
			told.take()
			do()
			var kinds []ClusterEventKind
			for _, c := range told.take() {
				kinds = append(kinds, c.Kind)
			}
			return kinds
		}
		assert.Equal(t, []ClusterEventKind{NodeChanged}, kinds(func() { change(w, newNode("node-1"), func(n *v1.Node) { n.Labels["x"] = "y" }) }))
		assert.Empty(t, kinds(func() { change(w, newNode("node-1"), func(n *v1.Node) { n.Annotations = map[string]string{"x": "y"} }) }))
		assert.Equal(t, []ClusterEventKind{LimitRaised}, kinds(func() {
			change(w, newCSINode("node-1", 1), func(n *storagev1.CSINode) { *n.Spec.Drivers[0].Allocatable.Count = 2 })
		}))
		assert.Empty(t, kinds(func() {
			change(w, newCSINode("node-1", 1), func(n *storagev1.CSINode) { *n.Spec.Drivers[0].Allocatable.Count = 1 })
		}))
		assert.Equal(t, []ClusterEventKind{LimitRaised}, kinds(func() {
			change(w, newCSINode("node-1", 1), func(n *storagev1.CSINode) { n.Spec.Drivers[0].Allocatable = nil })
		}), "no limit any more")
		assert.Equal(t, []ClusterEventKind{CapacityRaised}, kinds(func() {
			change(w, newCapacity("node-1", ""), func(c *storagev1.CSIStorageCapacity) { c.Capacity = ptr(resource.MustParse("11Gi")) })
		}))
		assert.Empty(t, kinds(func() {
			change(w, newCapacity("node-1", ""), func(c *storagev1.CSIStorageCapacity) { c.Capacity = ptr(resource.MustParse("5Gi")) })
		}))
		assert.Equal(t, []ClusterEventKind{DriverChanged}, kinds(func() { change(w, newDriver(), func(d *storagev1.CSIDriver) { d.Spec.StorageCapacity = nil }) }))
		assert.Equal(t, []ClusterEventKind{ClaimChanged}, kinds(func() { w.create(newClaim("data", ofClass("made"))) }))
		assert.Equal(t, []ClusterEventKind{VolumeChanged}, kinds(func() { w.create(newVolume("v")) }))
		assert.Equal(t, []ClusterEventKind{ClassChanged}, kinds(func() { w.create(newClass("made", makes)) }))
		assert.Equal(t, []ClusterEventKind{AttributesClassChanged}, kinds(func() { w.create(newAttributesClass("gold", "csi.example")) }))
		assert.Empty(t, kinds(func() { w.create(on(newPod("p", "data"), "node-1")) }))
		assert.Equal(t, []ClusterEventKind{PodLeft}, kinds(func() { w.delete(newPod("p")) }))
		assert.Empty(t, kinds(func() { w.create(newAttachment("at", "v", "node-1")) }))
		assert.Equal(t, []ClusterEventKind{AttachmentGone}, kinds(func() { w.delete(newAttachment("at", "v", "node-1")) }))
		assert.Equal(t, []ClusterEventKind{ReservationReleased}, kinds(func() { w.reserve(newPod("q", "data"), "node-2").Release() }))
	})
}

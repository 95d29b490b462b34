package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

var archives = schema.GroupKind{Group: "example.com", Kind: "Archive"}

func filledFrom(name string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) {
		claim.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: ptr(archives.Group), Kind: archives.Kind, Name: name}
	}
}

// disks are the filesystems of the volumes, and the populator that fills them. Content survives controllers.
type disks struct {
	mu       sync.Mutex
	mounted  map[string]bool
	content  map[string]string
	log      []string
	populate func(ctx context.Context, request PopulateRequest) (string, error) // nil fills at once
	release  func(ctx context.Context) error                                    // nil releases
}

func newDisks() *disks { return &disks{mounted: map[string]bool{}, content: map[string]string{}} }

func (d *disks) options() Options {
	return Options{Workers: 1, Populators: map[schema.GroupKind]Populator{archives: d}, Filesystems: d}
}

func (d *disks) Fill(ctx context.Context, pv *v1.PersistentVolume, fill func(ctx context.Context, dir string) error) error {
	d.note("mount "+pv.Name, func() { d.mounted[pv.Name], d.content[pv.Name] = true, "" })
	if err := fill(ctx, "/"+pv.Name); err != nil {
		return err
	}
	d.note("unmount "+pv.Name, func() { d.mounted[pv.Name] = false })
	return nil
}

func (d *disks) Release(ctx context.Context, pv *v1.PersistentVolume) error {
	d.mu.Lock()
	release := d.release
	d.mu.Unlock()
	if release != nil {
		if err := release(ctx); err != nil {
			return err
		}
	}
	d.note("release "+pv.Name, func() { d.mounted[pv.Name] = false })
	return nil
}

func (d *disks) Populate(ctx context.Context, request PopulateRequest) (string, error) {
	name := strings.TrimPrefix(request.Dir, "/")
	d.note("populate "+name, func() { d.content[name] = "half" })
	if d.populate != nil {
		if digest, err := d.populate(ctx, request); err != nil || digest == "" {
			return digest, err
		}
	}
	d.note("", func() { d.content[name] = "full" })
	return "sha256:full", nil
}

func (d *disks) note(line string, change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if line != "" {
		d.log = append(d.log, line)
	}
	change()
}

func (d *disks) steps() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.log)
}

// isFull reports whether the volume has its whole content and is not mounted.
func (d *disks) isFull(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.content[name] == "full" && !d.mounted[name]
}

func (d *disks) isMounted(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mounted[name]
}

func (w *world) messages(reason string) []string {
	var messages []string
	for _, e := range w.events.Events() {
		if e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

func (w *world) requireGone(name string) {
	w.t.Helper()
	_, err := store.Get[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "default", name)
	require.ErrorIs(w.t, err, store.ErrNotFound)
}

func TestAClaimIsBoundWhenItsVolumeIsFull(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), filledFrom("a")), newClass("x")}, func(t *testing.T, w *world) {
		d := newDisks()
		goOn := make(chan struct{})
		d.populate = func(_ context.Context, request PopulateRequest) (string, error) {
			assert.Equal(t, "a", request.Claim.Spec.DataSourceRef.Name)
			assert.Equal(t, made, request.Volume.Name)
			for done := range int64(100) {
				request.Report(PopulateProgress{Done: done, Total: 100})
				time.Sleep(time.Second)
			}
			<-goOn
			return "yes", nil
		}
		c, _ := w.start(w.store, d.options())
		idle()
		pv := w.volume(made)
		assert.Equal(t, "Archive.example.com/a", pv.Annotations[objects.AnnPopulate])
		assert.NotEmpty(t, pv.Annotations[objects.AnnPopulating])
		assert.Equal(t, v1.VolumePending, pv.Status.Phase)
		assert.Contains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
		assert.Contains(t, volume.WhyUnbound(w.claim("c")), "being filled from Archive.example.com/a")

		w.create(newClaim("other", ofClass("x")))
		idle()
		w.requireBound("other", "pvc-uid-other") // The one worker is not held.

		time.Sleep(time.Hour)
		idle()
		assert.Empty(t, w.claim("c").Spec.VolumeName)
		assert.Equal(t, v1.ClaimPending, w.claim("c").Status.Phase)
		pending, there := c.Why(claimC)
		require.True(t, there)
		assert.Contains(t, pending.Message, "90 of 100 bytes (90 %)")
		progress := w.messages(ReasonPopulating)
		assert.Len(t, progress, 11, "the begin, and one event every ten seconds: %v", progress)

		close(goOn)
		idle()
		w.requireBound("c", made)
		assert.Equal(t, "sha256:full", w.volume(made).Annotations[objects.AnnPopulated])
		assert.True(t, d.isFull(made))
		assert.Equal(t, []string{"mount " + made, "populate " + made, "unmount " + made}, d.steps())
		assert.Len(t, w.messages(objects.ReasonPopulationSucceeded), 1)
		_, there = c.Why(claimC)
		assert.False(t, there)
	})
}

// fillingStory is a claim that is filled, by a controller that dies at a write, and one that goes on.
func fillingStory(t *testing.T, dies int, arrives, transacts, deleted bool) (end []string, fills, writes int) {
	t.Helper()
	inWorld(t, objectList{newClass("x"), newClaim("c", ofClass("x"), filledFrom("a"))}, func(t *testing.T, w *world) {
		d := newDisks()
		d.populate = func(ctx context.Context, _ PopulateRequest) (string, error) {
			select {
			case <-time.After(time.Second):
				return "yes", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		s := crashstore.New(w.store, crashstore.Crash{After: dies, Arrives: arrives})
		seen := store.Store(s)
		if transacts {
			transactor, ok := w.store.(store.Transactor)
			require.True(t, ok)
			seen = crashstore.Transactor{Store: s, Under: transactor}
		}
		_, stop := w.start(seen, d.options())
		if deleted {
			time.Sleep(500 * time.Millisecond) // in the middle of the filling
			w.delete(newClaim("c"))
		}
		sleepUntilIdle()
		claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), w.store, "default", "c")
		if err == nil && claim.Status.Phase == v1.ClaimBound {
			assert.True(t, d.isFull(made), "bound before it was full")
		}
		stop()
		w.start(w.store, d.options())
		sleepUntilIdle()
		if !deleted {
			w.requireBound("c", made)
			assert.True(t, d.isFull(made))
		}
		assert.False(t, d.isMounted(made))
		for _, step := range d.steps() {
			if step == "populate "+made {
				fills++
			}
		}
		end, writes = w.ends(), s.Steps()
	})
	return end, fills, writes
}

func TestAFillingStartsOverWhereverTheControllerDied(t *testing.T) {
	for _, transacts := range []bool{false, true} {
		for _, deleted := range []bool{false, true} {
			t.Run(fmt.Sprintf("transactions %v, claim deleted %v", transacts, deleted), func(t *testing.T) {
				end, fills, writes := fillingStory(t, 1<<30, false, transacts, deleted)
				require.Equal(t, 1, fills)
				require.Greater(t, writes, 4)
				if deleted {
					require.Equal(t, []string{fmt.Sprintln("storage", []string(nil))}, end)
				}
				for k := range writes {
					for _, arrives := range []bool{false, true} {
						got, _, _ := fillingStory(t, k, arrives, transacts, deleted)
						assert.Equal(t, end, got, "died at write %d, which arrived: %v", k, arrives)
					}
				}
			})
		}
	}
}

// A controller that ends in the middle leaves a volume that the next one fills from the start.
func TestAHalfFilledVolumeIsFilledAgain(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), filledFrom("a")), newClass("x")}, func(t *testing.T, w *world) {
		d := newDisks()
		d.populate = func(ctx context.Context, _ PopulateRequest) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		_, stop := w.start(w.store, d.options())
		idle()
		first := w.volume(made).Annotations[objects.AnnPopulating]
		stop()
		assert.False(t, d.isMounted(made), "a controller that ends in order leaves no mount")
		assert.False(t, d.isFull(made))
		assert.Empty(t, w.volume(made).Annotations[objects.AnnPopulated])
		d.populate = nil // No controller runs.
		w.start(w.store, d.options())
		sleepUntilIdle()
		w.requireBound("c", made)
		assert.NotEqual(t, first, w.volume(made).Annotations[objects.AnnPopulating])
		assert.Equal(t, 1, w.calls(fake.MethodProvision))
	})
}

func TestAClaimThatIsDeletedWhileItIsFilledIsCleanedUp(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), filledFrom("a")), newClass("x")}, func(t *testing.T, w *world) {
		d := newDisks()
		d.populate = func(ctx context.Context, request PopulateRequest) (string, error) {
			<-ctx.Done()
			time.Sleep(3 * time.Second) // The last write takes a while.
			request.Report(PopulateProgress{Done: 1})
			return "", ctx.Err()
		}
		c, _ := w.start(w.store, d.options())
		idle()
		w.delete(newClaim("c"))
		assert.Contains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning, "the populator still writes")
		assert.Equal(t, []string{made}, w.plugin.Backend().Handles())
		sleepUntilIdle()
		w.requireGone("c")
		w.requireNoVolume(made)
		assert.Empty(t, w.plugin.Backend().Handles())
		assert.Equal(t, "release "+made, d.steps()[len(d.steps())-1])
		assert.False(t, d.isMounted(made))
		assert.Empty(t, c.Pending())
	})
}

// The storage is not deleted while the volume may be mounted, also if another program has removed the claim's finalizers.
func TestNothingIsDeletedBeforeTheVolumeIsReleased(t *testing.T) {
	for name, forced := range map[string]bool{"claim deleted": false, "claim gone": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, objectList{newClaim("c", ofClass("x"), filledFrom("a")), newClass("x")}, func(t *testing.T, w *world) {
				d := newDisks()
				d.populate = func(ctx context.Context, _ PopulateRequest) (string, error) { <-ctx.Done(); return "", ctx.Err() }
				_, stop := w.start(w.store, d.options())
				idle()
				stop()
				d.note("", func() {
					d.mounted[made] = true // as after kill -9
					d.release = func(context.Context) error { return errors.New("the device is busy") }
				})
				w.delete(newClaim("c"))
				if forced {
					claim := w.claim("c")
					claim.Finalizers = nil
					_, err := store.Update(t.Context(), w.store, claim)
					require.NoError(t, err)
					w.requireGone("c")
				}
				w.start(w.store, d.options())
				sleepUntilIdle()
				assert.Equal(t, []string{made}, w.plugin.Backend().Handles())
				require.NotEmpty(t, w.messages(ReasonPopulationFailed))
				assert.Contains(t, w.messages(ReasonPopulationFailed)[0], "the device is busy")
				d.note("", func() { d.release = nil })
				sleepUntilIdle()
				w.requireGone("c")
				assert.Empty(t, w.plugin.Backend().Handles())
				assert.False(t, d.isMounted(made))
			})
		})
	}
}

func TestAPopulatorThatFailsIsCalledAgain(t *testing.T) {
	for name, fails := range map[string]func() (string, error){
		"error":     func() (string, error) { return "", errors.New("the digest is another") },
		"panic":     func() (string, error) { panic("the digest is another") },
		"no digest": func() (string, error) { return "", nil },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, objectList{newClaim("c", ofClass("x"), filledFrom("a")), newClass("x")}, func(t *testing.T, w *world) {
				d := newDisks()
				var mended atomic.Bool
				d.populate = func(context.Context, PopulateRequest) (string, error) {
					if !mended.Load() {
						return fails()
					}
					return "yes", nil
				}
				c, _ := w.start(w.store, d.options())
				idle()
				why, waits := c.Why(claimC)
				require.True(t, waits)
				assert.Equal(t, ReasonPopulationFailed, why.Reason)
				require.Error(t, why.Err)
				assert.Contains(t, why.Message, "digest")
				assert.Len(t, w.messages(ReasonPopulationFailed), 1)
				assert.Contains(t, volume.WhyUnbound(w.claim("c")), "digest")
				time.Sleep(10 * time.Second)
				assert.Less(t, len(d.steps()), 20, "back-off")
				assert.Greater(t, len(d.steps()), 6, "it is tried again")
				assert.Equal(t, "release "+made, d.steps()[2])
				mended.Store(true)
				sleepUntilIdle()
				w.requireBound("c", made)
			})
		})
	}
}

func TestAPopulatorThatDoesNotReturnIsNamed(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), filledFrom("a")), newClass("x")}, func(t *testing.T, w *world) {
		d := newDisks()
		returns := make(chan struct{})
		d.populate = func(context.Context, PopulateRequest) (string, error) { <-returns; return "yes", nil }
		options := d.options()
		options.Events = w.events
		c := New(w.plugins, w.store, options)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		idle()
		w.delete(newClaim("c"))
		time.Sleep(time.Hour)
		assert.Contains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning, "it may still write")
		assert.NotContains(t, d.steps(), "release "+made)
		cancel()
		var abandoned *AbandonedCallsError
		require.ErrorAs(t, <-ended, &abandoned)
		assert.Contains(t, abandoned.Error(), made)
		close(returns)
		idle()
	})
}

func TestAClaimWaitsForAPopulator(t *testing.T) {
	block := v1.PersistentVolumeBlock
	elsewhere := func(claim *v1.PersistentVolumeClaim) { claim.Spec.DataSourceRef.Namespace = ptr("other") }
	for name, row := range map[string]struct {
		change    func(*v1.PersistentVolumeClaim)
		configure func(*Options)
		reason    string
		message   string
	}{
		"unknown kind":    {configure: func(o *Options) { o.Populators = nil }, reason: ReasonUnrecognizedDataSourceKind, message: "Options.Populators"},
		"no filesystems":  {configure: func(o *Options) { o.Filesystems = nil }, reason: ReasonProvisioningFailed, message: "Options.Filesystems"},
		"a block volume":  {change: func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }, reason: ReasonProvisioningFailed, message: "Filesystem"},
		"other namespace": {change: elsewhere, reason: ReasonProvisioningFailed, message: "namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := newClaim("c", ofClass("x"), filledFrom("a"))
			if row.change != nil {
				row.change(claim)
			}
			inWorld(t, objectList{claim, newClass("x"), newVolume("free", inClass("x"))}, func(t *testing.T, w *world) {
				options := newDisks().options()
				if row.configure != nil {
					row.configure(&options)
				}
				c, _ := w.start(w.store, options)
				idle()
				why, waits := c.Why(claimC)
				require.True(t, waits)
				assert.Equal(t, row.reason, why.Reason)
				assert.Contains(t, why.Message, row.message)
				assert.NotEmpty(t, w.messages(row.reason))
				assert.Zero(t, w.calls(fake.MethodProvision))
				assert.Empty(t, w.claim("c").Finalizers[1:], "nothing was begun")
			})
		})
	}
}

// A volume that is not full goes to no claim, whichever way the two name each other.
func TestAVolumeThatIsNotFullIsBoundToNothing(t *testing.T) {
	unfilled := volumeAnnotation(objects.AnnPopulate, "Archive.example.com/a")
	for name, pair := range map[string]struct {
		pv    *v1.PersistentVolume
		claim *v1.PersistentVolumeClaim
	}{
		"free":               {newVolume("v", unfilled), newClaim("c")},
		"reserved":           {newVolume("v", unfilled, refTo("c", "")), newClaim("c")},
		"reserved by UID":    {newVolume("v", unfilled, refTo("c", "uid-c")), newClaim("c")},
		"named":              {newVolume("v", unfilled), newClaim("c", names("v"))},
		"named and reserved": {newVolume("v", unfilled, refTo("c", "")), newClaim("c", names("v"))},
		"owned and named":    {newVolume("v", unfilled, refTo("c", "uid-c")), newClaim("c", names("v"))},
		"repaired":           {newVolume("v", unfilled, refTo("c", "")), newClaim("c", names("v"), completed)},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, objectList{pair.pv, pair.claim}, func(t *testing.T, w *world) {
				before := w.claim("c")
				w.start(w.store, newDisks().options())
				sleepUntilIdle()
				assert.NotEqual(t, v1.VolumeBound, w.volume("v").Status.Phase)
				assert.Equal(t, before.Status.Phase == v1.ClaimBound, w.claim("c").Status.Phase == v1.ClaimBound)
				assert.Equal(t, before.Spec.VolumeName, w.claim("c").Spec.VolumeName)
				pv := w.volume("v")
				metav1.SetMetaDataAnnotation(&pv.ObjectMeta, objects.AnnPopulated, "sha256:x")
				_, err := store.Update(t.Context(), w.store, pv)
				require.NoError(t, err)
				sleepUntilIdle()
				assert.Equal(t, v1.VolumeBound, w.volume("v").Status.Phase)
				assert.Equal(t, "v", w.claim("c").Spec.VolumeName)
			})
		})
	}
}

// What an attempt has written does not count when another has begun since.
func TestOnlyTheLastAttemptCounts(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), filledFrom("a")), newClass("x")}, func(t *testing.T, w *world) {
		d := newDisks()
		goOn := make(chan struct{})
		d.populate = func(context.Context, PopulateRequest) (string, error) { <-goOn; return "yes", nil }
		c, _ := w.start(w.store, d.options())
		idle()
		pv := w.volume(made)
		pv.Annotations[objects.AnnPopulating] = "of another controller"
		_, err := store.Update(t.Context(), w.store, pv)
		require.NoError(t, err)
		close(goOn)
		idle()
		assert.Empty(t, w.volume(made).Annotations[objects.AnnPopulated])
		why, _ := c.Why(claimC)
		assert.Contains(t, why.Message, "another controller")
		sleepUntilIdle()
		w.requireBound("c", made)
		assert.NotEqual(t, "of another controller", w.volume(made).Annotations[objects.AnnPopulating])
	})
}

func TestAVolumeIsNotFilledFromAnotherSourceThanItWasMadeFor(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), filledFrom("a")), newClass("x")}, func(t *testing.T, w *world) {
		d := newDisks()
		d.populate = func(ctx context.Context, _ PopulateRequest) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		_, stop := w.start(w.store, d.options())
		idle()
		stop()
		claim := w.claim("c")
		claim.Spec.DataSourceRef.Name = "b"
		_, err := store.Update(t.Context(), w.store, claim)
		require.NoError(t, err)
		c, _ := w.start(w.store, d.options())
		sleepUntilIdle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		assert.Contains(t, why.Message, "make the claim anew")
		assert.Empty(t, w.claim("c").Spec.VolumeName)
	})
}

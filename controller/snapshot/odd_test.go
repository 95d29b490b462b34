package snapshot

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// A content that was kept when its snapshot was deleted has the mark of that deletion. It says nothing of the next snapshot.
func TestAContentThatIsUsedAgainIsHeldByItsNewSnapshot(t *testing.T) {
	inWorld(t, fake.PluginOptions{}, bound("c"), func(t *testing.T, w *world) {
		handle := existing(t, w, "old")
		kept := newByHand("content", handle, "s")
		kept.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		w.create(kept)
		w.create(snapshotOf("s", "content"))
		w.start(w.store)
		idle()
		w.requireReady("s")
		w.delete(newSnapshot("s", "", ""))
		isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
		require.Contains(t, w.content("content").Annotations, AnnBeingDeleted)

		change(w, kept, func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.VolumeSnapshotRef = v1.ObjectReference{Namespace: "default", Name: "t"}
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete
		})
		w.create(snapshotOf("t", "content"))
		idle()
		w.requireReady("t")
		assert.NotContains(t, w.content("content").Annotations, AnnBeingDeleted)
		change(w, kept, func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = map[string]string{AnnBeingDeleted: yes} })
		w.delete(kept)
		settle()
		assert.Equal(t, []string{handle}, w.handles(), "snapshot t is not being deleted")
		w.delete(newSnapshot("t", "", ""))
		isGone[*snapshotv1.VolumeSnapshotContent](w, "", "content")
		assert.Empty(t, w.handles())
	})
}

func TestAGroupsContentWithAnOldMarkIsHeldByItsGroup(t *testing.T) {
	inWorld(t, fake.PluginOptions{}, with(bound("a", labelled), objectList{newGroupClass("x"), newGroup("g", "x")}), func(t *testing.T, w *world) {
		w.start(w.store)
		idle()
		content := get[*groupv1.VolumeGroupSnapshotContent](w, "", "groupsnapcontent-uid-g")
		change(w, content, func(c *groupv1.VolumeGroupSnapshotContent) { c.Annotations[AnnGroupBeingDeleted] = yes })
		w.delete(content)
		settle()
		assert.Nil(t, get[*groupv1.VolumeGroupSnapshotContent](w, "", content.Name).Status.Error, "its deletion was begun, and the group is there")
	})
}

// A claim that is being deleted gets no content any more. A snapshot that names it too late does not keep it.
func TestAClaimIsNotKeptByWhatNeverReadsIt(t *testing.T) {
	held := func(claim *v1.PersistentVolumeClaim) {
		claim.Finalizers = []string{FinalizerSourceClaim, "example.com/held"}
		labelled(claim)
	}
	late := newSnapshot("late", "c", "x")
	both := newSnapshot("both", "c", "x")
	both.Spec.Source.VolumeSnapshotContentName = new("content")
	lost := newSnapshot("lost", "c", "x")
	lost.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: new("lost")}
	for name, obj := range map[string]store.Object{
		"a snapshot that comes too late": late, "a snapshot that names a content too": both,
		"a snapshot whose content is lost": lost, "a group that comes too late": newGroup("late", "x"),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, fake.PluginOptions{}, with(bound("c", held), objectList{newClass("x"), newGroupClass("x")}), func(t *testing.T, w *world) {
				w.delete(bound("c")[0])
				w.create(obj)
				w.start(w.store)
				settle()
				assert.NotContains(t, w.claim("c").Finalizers, FinalizerSourceClaim)
				assert.Empty(t, w.handles())
			})
		})
	}
}

// The first snapshot is ready, and its claim about to be released, when a second snapshot of the claim is made.
func TestAClaimIsNotReleasedBesideASnapshotThatBegins(t *testing.T) {
	inWorld(t, fake.PluginOptions{UnreadySnapshots: true}, with(bound("c", func(claim *v1.PersistentVolumeClaim) {
		claim.Finalizers = []string{FinalizerSourceClaim}
	}), objectList{newClass("x")}), func(t *testing.T, w *world) {
		slow := &slowRelease{Store: w.store, begun: make(chan struct{}), goOn: make(chan struct{})}
		c := New(w.plugins, slow, Options{Workers: 4, Jitter: -1})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		<-slow.begun // No snapshot was listed; the write that releases the claim is under way.
		w.create(newSnapshot("s", "c", "x"))
		idle()
		close(slow.goOn)
		settle()
		require.Equal(t, []string{"snapshot-uid-s"}, w.handles())
		assert.False(t, deref(w.snapshot("s").Status.ReadyToUse))
		assert.Contains(t, w.claim("c").Finalizers, FinalizerSourceClaim, "the snapshot reads it")
		cancel()
		require.NoError(t, <-ended)
	})
}

// slowRelease is a store in which the first write that releases a claim takes until goOn is closed.
type slowRelease struct {
	store.Store

	once        sync.Once
	begun, goOn chan struct{}
}

func (s *slowRelease) Kinds() *store.KindTable { return store.KindsOf(s.Store) }

func (s *slowRelease) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && !has(claim, FinalizerSourceClaim) {
		s.once.Do(func() {
			close(s.begun)
			<-s.goOn
		})
	}
	return s.Store.Update(ctx, obj)
}

// Two contents stand for one snapshot, and both are deleted with it.
func TestOfTwoContentsThatAreDeletedNeitherWaits(t *testing.T) {
	inWorld(t, fake.PluginOptions{}, bound("c"), func(t *testing.T, w *world) {
		handle := existing(t, w, "old")
		w.create(newByHand("a", handle, "s"))
		w.create(newByHand("b", handle, "s"))
		w.start(w.store)
		idle()
		w.delete(newByHand("a", "", ""))
		settle()
		assert.Contains(t, *w.content("a").Status.Error.Message, `content "b" has snapshot`)
		assert.Equal(t, []string{handle}, w.handles())
		w.delete(newByHand("b", "", ""))
		settle()
		isGone[*snapshotv1.VolumeSnapshotContent](w, "", "a")
		isGone[*snapshotv1.VolumeSnapshotContent](w, "", "b")
		assert.Empty(t, w.handles())
	})
}

// A content that someone wrote as if it were made for a snapshot has no snapshot made: two would get the same one.
func TestNoSnapshotIsMadeForAContentThatIsNotThatOfItsSnapshot(t *testing.T) {
	for name, ref := range map[string]v1.ObjectReference{
		"of another's snapshot": {Namespace: "default", Name: "s", UID: "uid-s"}, "of no snapshot": {Namespace: "default", Name: "s"},
	} {
		for mark, annotations := range map[string]map[string]string{
			"unmarked": {AnnSourceVolumes: "pv-c"}, "marked": {AnnSourceVolumes: "pv-c", AnnBeingCreated: yes},
		} {
			t.Run(name+" "+mark, func(t *testing.T) {
				inWorld(t, fake.PluginOptions{}, with(bound("c"), objectList{newSnapshot("s", "c", "no class")}), func(t *testing.T, w *world) {
					content := newByHand("content", "", "s")
					content.Annotations = annotations
					content.Spec.VolumeSnapshotRef = ref
					content.Spec.Source = snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new("volume-c")}
					w.create(content)
					w.start(w.store)
					settle()
					assert.Empty(t, w.handles())
				})
			})
		}
	}
}

// moody is a plugin that names no volume, and says so differently each time.
type moody struct {
	*fake.Plugin

	asked *atomic.Int32
	well  *atomic.Bool
}

func (p moody) GetVolumeName(spec *volume.Spec) (string, error) {
	if n := p.asked.Add(1); !p.well.Load() {
		return "", fmt.Errorf("attempt %d: %w", n, errRefused)
	}
	return p.Plugin.GetVolumeName(spec)
}

func TestAPluginThatNamesNoVolumeIsAskedAgainAfterABackoff(t *testing.T) {
	inWorld(t, fake.PluginOptions{}, with(bound("c", labelled), objectList{newClass("x"), newGroupClass("x")}), func(t *testing.T, w *world) {
		asked, well := &atomic.Int32{}, &atomic.Bool{}
		host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
		require.NoError(t, err)
		w.plugins = volume.NewVolumePluginMgr(host)
		require.NoError(t, w.plugins.InitPlugins(t.Context(), moody{w.plugin, asked, well}))
		few := &fewWrites{Store: w.store, left: 100}
		w.start(few)
		w.create(newSnapshot("s", "c", "x"))
		w.create(newGroup("g", "x"))
		settle()
		require.False(t, few.spent(), "the plugin is asked again and again")
		w.requireError("s", "no room")
		well.Store(true)
		settle()
		w.requireReady("s")
		assert.True(t, deref(w.group("g").Status.ReadyToUse))
	})
}

// An error that stays is written once: each look at it would change the object, and each change bring another look.
func TestAnErrorThatStaysIsWrittenOnce(t *testing.T) {
	for name, obj := range map[string]store.Object{
		"of a snapshot": newSnapshot("o", "c", "x"), "of a group": newGroup("o", "x"), "of a content": newByHand("o", "none", "s"),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, fake.PluginOptions{}, nil, func(t *testing.T, w *world) {
				few := &fewWrites{Store: w.store, left: 100, delay: time.Second}
				w.start(few)
				w.create(obj)
				settle()
				require.False(t, few.spent(), "what is written again each time brings the next look")
				assert.Equal(t, 98, few.left, "the finalizers, and the error")
			})
		})
	}
}

// fewWrites is a store that refuses all writes but the first. Each takes a while, so that no two are of the same time.
type fewWrites struct {
	store.Store

	delay time.Duration
	mu    sync.Mutex
	left  int
}

func (s *fewWrites) Kinds() *store.KindTable { return store.KindsOf(s.Store) }

func (s *fewWrites) spent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left <= 0
}

func (s *fewWrites) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	s.mu.Lock()
	s.left--
	s.mu.Unlock()
	if s.spent() {
		<-ctx.Done() // The loop ends, so that the test can.
		return nil, ctx.Err()
	}
	time.Sleep(s.delay)
	return s.Store.Update(ctx, obj)
}

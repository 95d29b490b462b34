package capacity_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/capacity"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

var ofHundred = fake.PluginOptions{Capacity: 100 * gib}

func TestOneObjectForEachClassAndSegment(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "me", UID: "uid-me"}
		w.create(classOf("late", nil))
		w.create(classOf("other", map[string]string{volume.VolumeParameterFSType: "xfs"}))
		atOnce := classOf("at-once", nil)
		atOnce.VolumeBindingMode = nil
		w.create(atOnce)
		foreign := classOf("foreign", nil)
		foreign.Provisioner = "example.com/elsewhere"
		w.create(foreign)
		w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "nowhere"}})
		w.create(csiNode("nowhere", "zone"))
		w.create(csiNode("without-a-node", "zone"))
		stop := w.start(func(o *capacity.Options) { o.Owner = &owner })
		assert.Equal(t, map[string]int64{"late/a": 100, "late/b": 100, "other/a": 100, "other/b": 100}, w.said())
		for _, o := range w.objects() {
			assert.Equal(t, "storage", o.Namespace)
			assert.Equal(t, map[string]string{capacity.LabelManagedBy: "volumekit", capacity.LabelDriverName: "fake.example.com"}, o.Labels)
			assert.Equal(t, []metav1.OwnerReference{owner}, o.OwnerReferences)
			assert.Equal(t, 100*gib, o.MaximumVolumeSize.Value())
		}
		stop()
		w.start(func(o *capacity.Options) { o.ImmediateBinding = true })
		assert.EqualValues(t, 100, w.said()["at-once/a"])
		assert.Len(t, w.objects(), 6)
	})
}

func TestSegmentsOfAPlugin(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		w.create(classOf("late", nil))
		for _, node := range []string{"a1", "a2", "b1"} {
			change(w, csiNode(node), func(n *storagev1.CSINode) { n.Spec.Drivers[0].TopologyKeys = nil })
		}
		stop := w.start()
		require.Len(t, w.objects(), 1)
		assert.NotNil(t, w.objects()[0].NodeTopology, "all nodes")
		assert.Empty(t, w.objects()[0].NodeTopology.MatchLabels)
		stop()
		w.start(func(o *capacity.Options) {
			o.Segments = map[string][]map[string]string{fake.DefaultPluginName: {{v1.LabelHostname: "a1"}}}
		})
		require.Len(t, w.objects(), 1)
		assert.Equal(t, map[string]string{v1.LabelHostname: "a1"}, w.objects()[0].NodeTopology.MatchLabels)
	})
}

func TestAVolumeThatIsMadeGrownOrDeletedChangesTheCapacity(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		w.create(classOf("late", nil))
		w.start()
		require.NoError(t, w.plugin.Backend().Create("pv", 30*gib))
		pv := volumeOf("pv", 30*gib)
		w.create(pv)
		assert.Equal(t, map[string]int64{"late/a": 70, "late/b": 70}, w.said())

		asked, versions := w.asked(), w.versions()
		change(w, pv, func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound })
		assert.Equal(t, asked, w.asked(), "nothing was made, grown or deleted")

		_, err := w.plugin.ExpandVolumeDevice(t.Context(), volume.NewSpecFromPersistentVolume(pv, false), resource.MustParse("40Gi"), resource.MustParse("30Gi"))
		require.NoError(t, err)
		change(w, pv, func(pv *v1.PersistentVolume) {
			pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("40Gi")}
		})
		assert.Equal(t, map[string]int64{"late/a": 60, "late/b": 60}, w.said())
		assert.NotEqual(t, versions, w.versions())

		deleter, err := w.plugin.NewDeleter(volume.NewSpecFromPersistentVolume(pv, false))
		require.NoError(t, err)
		require.NoError(t, deleter.Delete(t.Context()))
		w.delete(pv)
		assert.Equal(t, map[string]int64{"late/a": 100, "late/b": 100}, w.said())

		asked = w.asked()
		other := volumeOf("other", gib)
		other.Spec.CSI.Driver = "elsewhere.example.com"
		w.create(other)
		assert.Equal(t, asked, w.asked(), "a volume of another driver")
		inZoneA := volumeOf("in-a", gib)
		inZoneA.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
			{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{"a"}}}},
		}}}
		w.create(inZoneA)
		assert.Equal(t, asked+1, w.asked(), "the storage of zone b is as it was")
	})
}

func TestThePollFindsWhatNoEventSays(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		w.create(classOf("late", nil))
		w.start(func(o *capacity.Options) { o.PollInterval = 0 })
		asked, versions := w.asked(), w.versions()
		wait(time.Minute + time.Second)
		assert.Equal(t, asked+2, w.asked())
		assert.Equal(t, versions, w.versions(), "nothing changed, and nothing is written")
		require.NoError(t, w.plugin.Backend().Create("by hand", 10*gib))
		wait(time.Minute)
		assert.Equal(t, map[string]int64{"late/a": 90, "late/b": 90}, w.said())
	})
}

func TestObjectsGoWithTheirClassAndTheirSegment(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		class := classOf("late", nil)
		w.create(class)
		w.create(classOf("other", nil))
		stop := w.start()
		for _, foreign := range []map[string]string{
			nil, {capacity.LabelManagedBy: "another", capacity.LabelDriverName: "fake.example.com"}, {capacity.LabelManagedBy: "volumekit"},
		} {
			w.create(&storagev1.CSIStorageCapacity{
				ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "foreign-" + string(rune('a'+len(foreign))), Labels: foreign}, StorageClassName: "gone",
				NodeTopology: &metav1.LabelSelector{},
			})
		}
		require.Len(t, w.objects(), 7)
		w.delete(class)
		require.Len(t, w.objects(), 5)
		w.delete(csiNode("b1"))
		require.Len(t, w.objects(), 4)
		change(w, csiNode("a1"), func(n *storagev1.CSINode) { n.Spec.Drivers = nil })
		require.Len(t, w.objects(), 4, "another node is in the zone")
		stop()
		w.delete(classOf("other", nil))
		w.start()
		require.Len(t, w.objects(), 3, "what went while no controller ran")
		for _, o := range w.objects() {
			assert.True(t, strings.HasPrefix(o.Name, "foreign-"), o.Name)
		}
	})
}

func TestAnObjectThatAnotherChangedIsPutRight(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		w.create(classOf("late", nil))
		stop := w.start()
		object := w.objects()[0]
		change(w, object, func(o *storagev1.CSIStorageCapacity) {
			o.Capacity = resource.NewQuantity(1, resource.BinarySI)
			o.Labels["mine"] = "stays"
		})
		assert.Equal(t, map[string]int64{"late/a": 100, "late/b": 100}, w.said())
		w.delete(object)
		require.Len(t, w.objects(), 2)
		second := object.DeepCopy()
		second.Name, second.UID, second.ResourceVersion = "second", "", ""
		w.create(second)
		require.Len(t, w.objects(), 2, "a second object of a class and segment")

		versions := w.versions()
		stop()
		w.start()
		assert.Equal(t, versions, w.versions(), "the next controller finds everything right")
	})
}

func TestAFailureIsToldOnceAndTheObjectStays(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		class := classOf("late", nil)
		w.create(class)
		w.start(func(o *capacity.Options) {
			o.Segments = map[string][]map[string]string{fake.DefaultPluginName: {{"zone": "a"}}}
		})
		w.plugin.Inject(fake.MethodGetCapacity, fake.FailN(4, errors.New("the storage does not answer")))
		require.NoError(t, w.plugin.Backend().Create("pv", 30*gib))
		w.create(volumeOf("pv", 30*gib))
		assert.Equal(t, map[string]int64{"late/a": 100}, w.said(), "what is not known is not written")
		wait(5 * time.Second)
		assert.Equal(t, map[string]int64{"late/a": 100}, w.said())
		assert.Len(t, w.events.Events(), 1, w.events.Events())
		assert.Equal(t, 1, w.log.count("does not answer"))
		wait(10 * time.Second)
		assert.Equal(t, map[string]int64{"late/a": 70}, w.said())
		assert.Equal(t, 1, w.log.count("known again"))

		w.plugin.Inject(fake.MethodGetCapacity, fake.Fault{Panic: "oops"})
		change(w, class, func(c *storagev1.StorageClass) { c.Parameters = map[string]string{volume.VolumeParameterFSType: "xfs"} })
		wait(time.Minute)
		assert.Len(t, w.events.Events(), 2)
		assert.Equal(t, map[string]int64{"late/a": 70}, w.said())
	})
}

// losing is a store whose first answers to writes of capacities are lost.
type losing struct {
	store.Store
	left atomic.Int32
}

func (l *losing) lose(obj runtime.Object) error {
	if _, ok := obj.(*storagev1.CSIStorageCapacity); !ok || l.left.Add(-1) < 0 {
		return nil
	}
	return errors.New("the answer is lost")
}

func (l *losing) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	made, err := l.Store.Create(ctx, obj)
	return made, errors.Join(err, l.lose(obj))
}

func (l *losing) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	written, err := l.Store.Update(ctx, obj)
	return written, errors.Join(err, l.lose(obj))
}

// A write whose answer is lost is not made again, and a second process with the same name makes no second object.
func TestALostAnswerMakesNoSecondObject(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		lossy := &losing{Store: w.store}
		w.store = lossy
		w.create(classOf("late", nil))
		lossy.left.Store(3)
		w.start()
		w.start()
		wait(time.Minute)
		assert.Equal(t, map[string]int64{"late/a": 100, "late/b": 100}, w.said())
		require.Len(t, w.objects(), 2)
		require.NoError(t, w.plugin.Backend().Create("pv", 30*gib))
		lossy.left.Store(2)
		w.create(volumeOf("pv", 30*gib))
		wait(time.Minute)
		assert.Equal(t, map[string]int64{"late/a": 70, "late/b": 70}, w.said())
		assert.Len(t, w.objects(), 2)
	})
}

func TestUnknownIsNotZero(t *testing.T) {
	for name, row := range map[string]struct {
		options            fake.PluginOptions
		available, largest *int64
	}{
		"nothing is known": {fake.PluginOptions{}, nil, nil},
		"the largest":      {fake.PluginOptions{MaxSize: 5}, nil, ptr(int64(5))},
		"full":             {fake.PluginOptions{Capacity: 1}, ptr(int64(0)), ptr(int64(0))},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, row.options, func(w *world) {
				t := w.t
				require.NoError(t, w.plugin.Backend().Create("pv", 1))
				w.create(classOf("late", nil))
				w.start()
				for _, o := range w.objects() {
					assert.Equal(t, row.available, valueOf(o.Capacity))
					assert.Equal(t, row.largest, valueOf(o.MaximumVolumeSize))
				}
				assert.Len(t, w.objects(), 2)
			})
		})
	}
}

func ptr[T any](v T) *T { return &v }

func valueOf(q *resource.Quantity) *int64 {
	if q == nil {
		return nil
	}
	return ptr(q.Value())
}

func TestAPluginThatHangsHoldsUpNoOther(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		other := fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}, Name: "example.com/other", Capacity: 7 * gib})
		require.NoError(t, w.plugins.InitPlugins(t.Context(), other))
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodGetCapacity, fake.Fault{Until: release, Uninterruptible: true})
		w.create(classOf("late", nil))
		class := classOf("other", nil)
		class.Provisioner = "example.com/other"
		w.create(class)
		stop := w.start(func(o *capacity.Options) {
			o.Segments = map[string][]map[string]string{fake.DefaultPluginName: {{"zone": "a"}}, "example.com/other": {{"zone": "a"}}}
		})
		assert.Equal(t, map[string]int64{"other/a": 7}, w.said())
		wait(10 * time.Minute)
		assert.Equal(t, 1, w.asked(), "a call that hangs is not made again")
		close(release)
		wait(5 * time.Minute)
		assert.Equal(t, map[string]int64{"other/a": 7, "late/a": 100}, w.said())
		stop()
	})
}

func TestAPluginThatCannotSayHasNoObjects(t *testing.T) {
	inWorld(t, fake.PluginOptions{Without: volume.CapCapacity}, func(w *world) {
		t := w.t
		w.create(classOf("late", nil))
		w.start()
		assert.Empty(t, w.objects())
	})
}

func TestNewRefuses(t *testing.T) {
	_, err := capacity.New(nil, nil, capacity.Options{Namespace: "storage"})
	require.ErrorIs(t, err, volume.ErrInvalid)
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		_, err := capacity.New(w.plugins, w.store, capacity.Options{})
		require.ErrorIs(t, err, volume.ErrInvalid)
	})
}

// A plugin that is added while the controller runs is asked at the next poll, also where its classes were there before.
func TestAPluginThatIsAddedLaterIsAsked(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		class := classOf("other", nil)
		class.Provisioner = "example.com/other"
		w.create(class)
		w.start(func(o *capacity.Options) {
			o.PollInterval = 0
			o.Segments = map[string][]map[string]string{"example.com/other": {{"zone": "a"}}}
		})
		wait(10 * time.Minute)
		assert.Empty(t, w.objects())
		other := fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}, Name: "example.com/other", Capacity: 7 * gib})
		require.NoError(t, w.plugins.InitPlugins(t.Context(), other))
		wait(time.Minute + time.Second)
		assert.Equal(t, map[string]int64{"other/a": 7}, w.said())
	})
}

// A class whose provisioner has the name of a plugin's driver is another's, and takes no object of the plugin's classes away.
func TestAProvisionerWithTheNameOfADriverIsAnother(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		w.create(classOf("late", nil))
		w.start(func(o *capacity.Options) { o.PollInterval = 0 })
		versions := w.versions()
		require.Len(t, versions, 2)
		class := classOf("another", nil)
		class.Provisioner = volume.DriverOfPluginName(fake.DefaultPluginName)
		w.create(class)
		wait(10 * time.Minute)
		assert.Equal(t, versions, w.versions())
	})
}

// A plugin that has left a call behind is not asked again until that call has returned: each one keeps a thread.
func TestAPluginIsNotAskedWhileACallOfItIsLeft(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		left := make(chan struct{})
		w.plugin.Inject(fake.MethodGetCapacity, fake.Fail(mount.NewAbandonedError("measuring", "/images", context.DeadlineExceeded, left)))
		w.create(classOf("late", nil))
		stop := w.start(func(o *capacity.Options) {
			o.Segments = map[string][]map[string]string{fake.DefaultPluginName: {{"zone": "a"}}}
		})
		wait(10 * time.Minute)
		assert.Equal(t, 1, w.asked())
		close(left)
		wait(5 * time.Minute)
		assert.Equal(t, map[string]int64{"late/a": 100}, w.said())
		stop()
	})
}

// A write that the store tells of before it answers is not taken for one by another: the plugin is asked once for it.
func TestAnOwnWriteIsNoChangeByAnother(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		w.store = slow{w.store}
		w.create(classOf("late", nil))
		w.start(func(o *capacity.Options) {
			o.Segments = map[string][]map[string]string{fake.DefaultPluginName: {{"zone": "a"}}}
		})
		wait(time.Minute)
		assert.Equal(t, 1, w.asked(), "an object was made")
		w.create(volumeOf("grown", 10*gib))
		wait(time.Minute)
		assert.Equal(t, 2, w.asked(), "nothing was written")
		require.NoError(t, w.plugin.Backend().Create("grown", 10*gib))
		change(w, volumeOf("grown", 10*gib), func(pv *v1.PersistentVolume) {
			pv.Spec.Capacity[v1.ResourceStorage] = *resource.NewQuantity(11*gib, resource.BinarySI)
		})
		wait(time.Minute)
		assert.Equal(t, map[string]int64{"late/a": 90}, w.said())
		assert.Equal(t, 3, w.asked(), "the object was changed once")
	})
}

// slow is a store that answers a write of a capacity when those who watch were told long ago.
type slow struct{ store.Store }

func (s slow) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	made, err := s.Store.Create(ctx, obj)
	s.wait(obj)
	return made, err
}

func (s slow) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	made, err := s.Store.Update(ctx, obj)
	s.wait(obj)
	return made, err
}

func (slow) wait(obj runtime.Object) {
	if _, ok := obj.(*storagev1.CSIStorageCapacity); ok {
		time.Sleep(time.Second)
	}
}

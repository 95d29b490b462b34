package scheduling_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

const (
	manyPods, manyNodes = 100, 10
	// limit is how many volumes of the plugin a node can attach: fewer than the pods want together.
	limit = 8
)

// many is a store with many pods, and who has placed them.
type many struct {
	t     *testing.T
	store store.Store

	mu sync.Mutex
	// given are the nodes that schedulers gave to a pod; anew is how often one had to place a pod anew.
	given map[types.UID][]string
	anew  int
}

// withoutTransactions is a store that has none.
type withoutTransactions struct{ store.Store }

// amongMany runs test in a bubble with a hundred pods, their claims, ten nodes, and the controller of claims. Each pod has a claim for a
// volume that a plugin makes; every other pod has one for a volume of its node, too.
func amongMany(t *testing.T, wrap func(store.Store) store.Store, test func(m *many)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &many{t: t, store: wrap(store.NewMemory(store.MemoryOptions{})), given: map[types.UID][]string{}}
		late := storagev1.VolumeBindingWaitForFirstConsumer
		m.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: persistentvolume.NoProvisioner, VolumeBindingMode: &late})
		m.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: fake.DefaultPluginName, VolumeBindingMode: &late})
		for i := range manyNodes {
			m.createNode(fmt.Sprint("node-", i))
		}
		for i := range manyPods {
			m.createPod(fmt.Sprint("pod-", i), i%2 == 0)
		}
		host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "controller"})
		require.NoError(t, err)
		plugins := volume.NewVolumePluginMgr(host)
		require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}})))
		claims := persistentvolume.New(plugins, m.store, persistentvolume.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- claims.Run(ctx) }()
		test(m)
		m.check()
		cancel()
		require.NoError(t, <-ended)
	})
}

func (m *many) create(obj store.Object) {
	m.t.Helper()
	_, err := m.store.Create(m.t.Context(), obj)
	require.NoError(m.t, err)
}

// createNode makes a node that can attach so many volumes, with five volumes of its own.
func (m *many) createNode(name string) {
	m.t.Helper()
	count := int32(limit)
	m.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}})
	m.create(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
		Name: volume.DriverOfPluginName(fake.DefaultPluginName), NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: &count},
	}}}})
	for i := range 5 {
		m.create(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("disk-", i, "-of-", name)}, Spec: v1.PersistentVolumeSpec{
			StorageClassName: "local", AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Capacity: gibibyte(),
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/disks"}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{name}}},
			}}}},
		}})
	}
}

func (m *many) createPod(name string, local bool) {
	m.t.Helper()
	classes := []string{"made"}
	if local {
		classes = append(classes, "local")
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	for _, class := range classes {
		claim := name + "-" + class
		m.create(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: claim}, Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: gibibyte()},
		}})
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: class, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	m.create(pod)
}

func gibibyte() v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
}

func allOf[T store.Object](m *many) []T {
	objects, _, err := store.ListOf[T](m.t.Context(), m.store, "")
	assert.NoError(m.t, err)
	return objects
}

// schedule runs a scheduler until every pod has a node or a reason, or so many have a node. It tries the nodes from the one at first on.
func (m *many) schedule(first, most int) {
	ctx, cancel := context.WithCancel(m.t.Context())
	s := scheduling.New(m.store, scheduling.Options{BindTimeout: time.Minute})
	var running, binding sync.WaitGroup
	running.Go(func() { assert.NoError(m.t, s.Run(ctx)) })
	defer running.Wait()
	defer cancel()
	assert.True(m.t, s.WaitSynced(ctx))
	for {
		before, tried := m.placed(), 0
		for _, pod := range allOf[*v1.Pod](m) {
			if before+tried >= most {
				break
			}
			if reservation := m.reserve(s, pod, first); reservation != nil {
				tried++
				binding.Go(func() { m.bind(ctx, pod, reservation) })
			}
		}
		binding.Wait()
		if tried == 0 {
			return
		}
		time.Sleep(time.Millisecond) // The time of the bubble: the schedulers have seen what was written.
	}
}

// placed returns how many pods have a node.
func (m *many) placed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.given)
}

// reserve reserves a node for a pod, and returns nil for a pod that has one, or can have none for a reason.
func (m *many) reserve(s *scheduling.Scheduler, pod *v1.Pod, first int) *scheduling.Reservation {
	if pod.Spec.NodeName != "" {
		return nil
	}
	result, err := s.Find(pod)
	if !assert.NoError(m.t, err) {
		return nil
	}
	for i := range manyNodes {
		node := fmt.Sprint("node-", (first+i)%manyNodes)
		why := result.Why(node)
		if why != nil {
			assert.NotEmpty(m.t, why.Reasons, "pod %s on %s", pod.Name, node)
			continue
		}
		reservation, err := s.Reserve(pod, node)
		if errors.Is(err, scheduling.ErrReserved) {
			return nil // Meanwhile another scheduler has placed it.
		}
		if err == nil {
			return reservation
		}
	}
	return nil
}

// bind has the claims of a pod bound, and gives it its node, unless another scheduler was faster.
func (m *many) bind(ctx context.Context, pod *v1.Pod, r *scheduling.Reservation) {
	err := r.Bind(ctx)
	if err == nil {
		assigned := pod.DeepCopy()
		assigned.Spec.NodeName = r.Node()
		_, err = store.Update(ctx, m.store, assigned)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.given[pod.UID] = append(m.given[pod.UID], r.Node())
		return
	}
	r.Release()
	m.anew++
	assert.True(m.t, errors.Is(err, scheduling.ErrPlaceAnew) || errors.Is(err, store.ErrConflict), "pod %s: %v", pod.Name, err)
}

// check fails unless each pod got one node at most, where it has its volumes, no volume has two claims, and pods without a node have a
// reason for each node.
func (m *many) check() {
	synctest.Wait()
	volumes, claimOf := map[string]*v1.PersistentVolume{}, map[string]string{}
	for _, pv := range allOf[*v1.PersistentVolume](m) {
		volumes[pv.Name] = pv
	}
	for _, pod := range allOf[*v1.Pod](m) {
		if pod.Spec.NodeName == "" {
			assert.Empty(m.t, m.given[pod.UID])
			continue
		}
		assert.Equal(m.t, []string{pod.Spec.NodeName}, m.given[pod.UID], "pod %s", pod.Name)
		for _, ref := range volume.ClaimsOfPod(pod) {
			claim, err := store.Get[*v1.PersistentVolumeClaim](m.t.Context(), m.store, ref.Namespace, ref.Name)
			require.NoError(m.t, err)
			pv := volumes[claim.Spec.VolumeName]
			require.NotNil(m.t, pv, "claim %s", claim.Name)
			assert.Equal(m.t, claim.UID, pv.Spec.ClaimRef.UID)
			assert.Empty(m.t, claimOf[pv.Name], "volume %s", pv.Name)
			claimOf[pv.Name] = claim.Name
			if affinity := pv.Spec.NodeAffinity; affinity != nil {
				assert.Equal(m.t, []string{pod.Spec.NodeName}, affinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values)
			}
		}
	}
	s := scheduling.New(m.store, scheduling.Options{})
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	require.True(m.t, s.WaitSynced(ctx))
	for _, pod := range allOf[*v1.Pod](m) {
		if result, err := s.Find(pod); pod.Spec.NodeName == "" && assert.NoError(m.t, err) {
			assert.Zero(m.t, result.Len(), "pod %s could have a node", pod.Name)
		}
	}
	cancel()
	require.NoError(m.t, <-ended)
}

// podsOn returns how many pods each node has: each has one volume of the plugin.
func (m *many) podsOn() map[string]int {
	count := map[string]int{}
	for _, pod := range allOf[*v1.Pod](m) {
		if pod.Spec.NodeName != "" {
			count[pod.Spec.NodeName]++
		}
	}
	return count
}

// Two schedulers that place a hundred pods at once give none of them two nodes, and bind no volume twice. Each may give the last place
// of a node away, so limits are checked where one scheduler works at a time.
func TestTwoSchedulersAtOncePlaceEachPodOnce(t *testing.T) {
	for name, wrap := range map[string]func(store.Store) store.Store{
		"with transactions":    func(s store.Store) store.Store { return s },
		"without transactions": func(s store.Store) store.Store { return withoutTransactions{s} },
	} {
		t.Run(name, func(t *testing.T) {
			amongMany(t, wrap, func(m *many) {
				var both sync.WaitGroup
				both.Go(func() { m.schedule(0, manyPods) })
				both.Go(func() { m.schedule(5, manyPods) })
				both.Wait()
				assert.NotZero(t, m.anew, "the schedulers did not meet")
				// A node can keep places when its five volumes are used up: the pods that are left need volumes of other nodes. The
				// fifty pods without such a need fill six nodes and two places; each of the four other nodes has its five volumes'
				// pods then: 70 pods at least. check proves that no pod that is left fits.
				assert.GreaterOrEqual(t, len(m.given), manyNodes*(limit-1))
			})
		})
	}
}

// A scheduler that takes over from another one counts what that one has placed: no node gets more volumes than it can attach, and as
// many pods as there is room for have a node.
func TestTheNextSchedulerKeepsTheLimits(t *testing.T) {
	amongMany(t, func(s store.Store) store.Store { return s }, func(m *many) {
		m.schedule(0, manyNodes*limit/2+3)
		assert.Len(t, m.given, manyNodes*limit/2+3)
		m.schedule(5, manyPods)
		for node, pods := range m.podsOn() {
			assert.Equal(t, limit, pods, node)
		}
		assert.Len(t, m.given, manyNodes*limit)
	})
}

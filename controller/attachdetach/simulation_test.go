package attachdetach_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/leader"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

var (
	nodeNames  = []string{"n-1", "n-2", "n-3"}
	claimNames = []string{"c-1", "c-2", "c-3"}
)

// process is one of those that stand by to run the controllers.
type process struct {
	cluster *cluster
	name    string
	lives   int
	network *network
	stop    func()
}

// start starts the process, under a name that no earlier life had.
func (p *process) start(t *testing.T) {
	t.Helper()
	p.lives++
	p.network = &network{Transactor: p.cluster.memory, cluster: p.cluster}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	network, holder := p.network, fmt.Sprintf("%s-%d", p.name, p.lives)
	go func() {
		defer close(done)
		if p.cluster.bugs.noElection {
			_ = control(ctx, t, p.cluster, network)
			return
		}
		options := leader.Options{Name: types.NamespacedName{Namespace: "default", Name: "volumes"}, Holder: holder}
		_ = leader.Run(ctx, network, options, func(ctx context.Context, s store.Store) error {
			return control(ctx, t, p.cluster, s)
		})
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// control runs the controllers until ctx ends.
func control(ctx context.Context, t *testing.T, c *cluster, s store.Store) error {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/nowhere", NodeName: "controller"})
	assert.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	assert.NoError(t, plugins.InitPlugins(ctx, c.newStorage()))
	claims := persistentvolume.New(plugins, s, persistentvolume.Options{Workers: 2, MaxBackoff: 5 * time.Second})
	options := attachdetach.Options{VerifyPeriod: time.Minute, MaxWaitForUnmount: -1}
	options.Backoff.Max = 5 * time.Second
	attachments := attachdetach.New(plugins, s, options)
	var both sync.WaitGroup
	both.Go(func() { _ = claims.Run(ctx) })
	both.Go(func() { _ = attachments.Run(ctx) })
	both.Wait()
	return nil
}

// simulate lets a cluster live for so many steps, and returns what went wrong.
func simulate(t *testing.T, seed uint64, steps int, planted bugs) (violations []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{
			memory: store.NewMemory(store.MemoryOptions{}), backend: fake.NewBackend(), bugs: planted, started: time.Now(),
			random: rand.New(rand.NewPCG(seed, 1)), mounted: map[string]map[string]bool{},
		}
		ctx := t.Context()
		for _, name := range nodeNames {
			create(t, c, newNode(name))
		}
		create(t, c, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName})
		processes := []*process{{cluster: c, name: "a"}, {cluster: c, name: "b"}}
		for _, p := range processes {
			p.start(t)
		}
		for range steps {
			c.step(ctx, t, processes)
			c.check(ctx)
		}
		c.settle(ctx, t, processes)
		for _, p := range processes {
			p.stop()
		}
		violations = c.violations
	})
	return violations
}

func create(t *testing.T, c *cluster, obj store.Object) {
	t.Helper()
	_, err := c.memory.Create(t.Context(), obj)
	if !errors.Is(err, store.ErrAlreadyExists) {
		require.NoError(t, err)
	}
}

// step does one thing of those that happen in a cluster, and lets some time pass.
func (c *cluster) step(ctx context.Context, t *testing.T, processes []*process) {
	t.Helper()
	node, claim := nodeNames[c.luck(len(nodeNames))], claimNames[c.luck(len(claimNames))]
	p := processes[c.luck(len(processes))]
	switch luck := c.luck(100); {
	case luck < 15:
		create(t, c, newClaim(claim))
	case luck < 30:
		create(t, c, newPod(fmt.Sprintf("p-%d", c.luck(4)), node, claim))
	case luck < 42:
		_ = c.memory.Delete(ctx, store.Key{Kind: store.Pods, Namespace: "default", Name: fmt.Sprintf("p-%d", c.luck(4))}, store.Preconditions{})
	case luck < 46:
		_ = c.memory.Delete(ctx, store.Key{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: claim}, store.Preconditions{})
	case luck < 49:
		p.stop()
		p.start(t)
	case luck < 52:
		p.network.cutOff(true)
	case luck < 58:
		p.network.cutOff(false)
	case luck < 60:
		c.fence(ctx, node)
	case luck < 64:
		c.release(ctx, node)
	default:
		c.agent(ctx, node)
	}
	time.Sleep(time.Duration(c.luck(2000)) * time.Millisecond)
	synctest.Wait()
}

func newClaim(name string) *v1.PersistentVolumeClaim {
	class := "fast"
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class,
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

func newPod(name, node, claim string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PodSpec{NodeName: node, Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}},
	}
}

// check looks for what must never be, whatever happens.
func (c *cluster) check(ctx context.Context) {
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](ctx, c.memory, "")
	if err != nil {
		c.violate("%v", err)
	}
	owners := map[string]string{}
	for _, claim := range claims {
		name := claim.Spec.VolumeName
		switch {
		case claim.Status.Phase == v1.ClaimLost:
			c.violate("claim %s has lost its volume", claim.Name)
		case claim.Status.Phase != v1.ClaimBound:
		case owners[name] != "":
			c.violate("volume %s belongs to claims %s and %s", name, claim.Name, owners[name])
		case !slices.Contains(c.backend.Handles(), name):
			c.violate("the storage of claim %s is gone", claim.Name)
		}
		owners[name] = claim.Name
	}
}

// settle lets the faults stop, and looks whether everything becomes what it should be.
func (c *cluster) settle(ctx context.Context, t *testing.T, processes []*process) {
	t.Helper()
	c.mu.Lock()
	c.calm = true
	c.mu.Unlock()
	for _, p := range processes {
		p.network.cutOff(false)
	}
	for _, name := range nodeNames {
		c.release(ctx, name)
	}
	for range 300 {
		for _, name := range nodeNames {
			c.agent(ctx, name)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
	}
	c.check(ctx)
	wanted := map[string][]string{}
	for _, node := range nodeNames {
		for handle := range c.wantedOn(ctx, node) {
			wanted[handle] = append(wanted[handle], node)
		}
	}
	for handle, nodes := range wanted {
		if mounted := c.mountsOf(handle); len(mounted) != 1 || !slices.Contains(nodes, mounted[0]) {
			c.violate("in the end volume %s is mounted on %v and wanted on %v", handle, mounted, nodes)
		}
	}
	for _, handle := range c.backend.Handles() {
		if at := c.backend.Nodes(handle); wanted[handle] == nil && len(at) > 0 {
			c.violate("in the end volume %s is attached to %v and wanted nowhere", handle, at)
		}
		if _, err := store.Get[*v1.PersistentVolume](ctx, c.memory, "", handle); err != nil {
			c.violate("in the end storage %s is known to nobody: %v", handle, err)
		}
	}
}

// However processes, networks, nodes and storage fail, no volume is on two nodes, none is taken from a node that uses it, none is
// deleted that a claim or a node has, and everything converges when the faults stop.
func TestClustersStayWhole(t *testing.T) {
	for seed := range uint64(8) {
		violations := simulate(t, seed, 250, bugs{})
		require.Empty(t, violations, "seed %d", seed)
	}
}

// A simulation that finds nothing is worth as much as the bugs that it would find.
func TestTheSimulationFindsBugs(t *testing.T) {
	for name, planted := range map[string]bugs{
		"two controllers at once": {noElection: true},
		"a node's status is believed outdated": {get: func(_ store.Key, obj runtime.Object) (runtime.Object, error) {
			if node, ok := obj.(*v1.Node); ok {
				node.Status.VolumesInUse = nil
			}
			return obj, nil
		}},
		"what is not listed is not there": {
			get: func(key store.Key, obj runtime.Object) (runtime.Object, error) {
				if key.Kind == store.PersistentVolumeClaims && rand.IntN(3) == 0 {
					return nil, store.ErrNotFound
				}
				return obj, nil
			},
			list: func(kind schema.GroupVersionKind, list store.List) store.List {
				if kind == store.PersistentVolumeClaims && rand.IntN(3) == 0 {
					list.Items = nil
				}
				return list
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(40) {
				if violations := simulate(t, seed, 250, planted); len(violations) > 0 {
					t.Logf("seed %d: %s", seed, violations[0])
					return
				}
			}
			t.Error("nothing was found")
		})
	}
}

package attachdetach_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/expand"
	"github.com/volumekit/volumekit/controller/leader"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

const (
	// maxWait is how long a sick node is waited for, longestStep how long a step takes at the most.
	maxWait     = 8 * time.Second
	longestStep = 2 * time.Second
)

var (
	nodeNames = []string{"n-1", "n-2", "n-3"}
	// classOfClaim are the claims that people make, and their classes.
	classOfClaim = map[string]string{"c-1": "fast", "c-2": "fast", "c-3": "late", "c-4": "manual", "c-5": "manual"}
	claimNames   = []string{"c-1", "c-2", "c-3", "c-4", "c-5"}
	// policyOf are the volumes that people make, and what becomes of them.
	policyOf = map[string]v1.PersistentVolumeReclaimPolicy{
		"s-1": v1.PersistentVolumeReclaimRecycle, "s-2": v1.PersistentVolumeReclaimRetain, "s-3": v1.PersistentVolumeReclaimDelete,
	}
	madeByPeople = []string{"s-1", "s-2", "s-3"}
	podNames     = []string{"p-1", "p-2", "p-3", "p-4"}
)

// process is one of those that stand by to run the controllers.
type process struct {
	cluster *cluster
	name    string
	// lease is what the process leads by, "" if all such processes work at once; run is what it does then.
	lease string
	run   func(ctx context.Context, t *testing.T, c *cluster, process string, s store.Store) error

	lives   int
	network *network
	stop    func()
}

// start starts the process, under a name that no earlier life had. Its store has transactions, or has none.
func (p *process) start(t *testing.T) {
	t.Helper()
	p.lives++
	holder := fmt.Sprintf("%s-%d", p.name, p.lives)
	p.network = p.cluster.newNetwork(holder)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var way store.Store = p.network
	if p.cluster.luck(2) == 0 {
		way = plain{p.network, p.network.Lessor}
	}
	p.cluster.note("process %s starts", holder)
	go func() {
		defer close(done)
		if p.lease == "" || p.lease == p.cluster.bugs.unelected {
			_ = p.run(ctx, t, p.cluster, holder, way)
			return
		}
		options := leader.Options{Name: types.NamespacedName{Namespace: "default", Name: p.lease}, Holder: holder}
		_ = leader.Run(ctx, way, options, func(ctx context.Context, s store.Store) error {
			p.cluster.note("process %s leads", holder)
			return p.run(ctx, t, p.cluster, holder, s)
		})
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		p.cluster.turns.Await(done)
	})
}

// kill ends the process. Most often it has no time left to write anything.
func (p *process) kill() {
	if p.cluster.luck(4) > 0 {
		p.network.cutOff(true)
	}
	p.stop()
}

// control runs the controllers of a process until ctx ends.
func control(ctx context.Context, t *testing.T, c *cluster, process string, s store.Store) error {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/nowhere", NodeName: "controller"})
	assert.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	assert.NoError(t, plugins.InitPlugins(ctx, c.newStorage(process)))
	ctx = workerContext{ctx, c, process}
	const most, noJitter = 5 * time.Second, -1
	claims := persistentvolume.New(plugins, c.bugs.view(c, "claims", s), persistentvolume.Options{
		Workers: 2, MaxBackoff: most, Jitter: noJitter, Filesystems: archives{c, process},
		Populators: map[schema.GroupKind]persistentvolume.Populator{{Group: "example.com", Kind: archive}: archives{c, process}},
	})
	watched := operations{c, process}
	options := attachdetach.Options{VerifyPeriod: time.Minute, MaxWaitForUnmount: maxWait, Observer: watched}
	options.Backoff.Max, options.Backoff.Jitter = most, noJitter
	attachments := attachdetach.New(plugins, c.bugs.view(c, "attachments", s), options)
	sizes := expand.Options{Observer: watched}
	sizes.Backoff.Max, sizes.Backoff.Infeasible, sizes.Backoff.Jitter = most, 10*most, noJitter
	growth := expand.New(plugins, c.bugs.view(c, "growth", s), sizes)
	var all sync.WaitGroup
	all.Go(func() { _ = claims.Run(ctx) })
	all.Go(func() { _ = attachments.Run(ctx) })
	all.Go(func() { _ = growth.Run(ctx) })
	if c.bugs.twoExpanders {
		c.runSecondExpander(ctx, t, process, &all)
	}
	all.Wait()
	return nil
}

// runSecondExpander has another controller of sizes and attributes work in the same process.
func (c *cluster) runSecondExpander(ctx context.Context, t *testing.T, process string, running *sync.WaitGroup) {
	t.Helper()
	process += " again"
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/nowhere", NodeName: "controller"})
	assert.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	assert.NoError(t, plugins.InitPlugins(ctx, c.newStorage(process)))
	options := expand.Options{Observer: operations{c, process}}
	options.Backoff.Max, options.Backoff.Jitter = 5*time.Second, -1
	second := expand.New(plugins, c.newNetwork(process), options)
	running.Go(func() { _ = second.Run(workerContext{ctx, c, process}) })
}

// processes are those of the controllers, and of the schedulers where these place the pods: in every other world one of them works at a
// time.
func (c *cluster) processes() []*process {
	processes := []*process{{cluster: c, name: "a", lease: "volumes", run: control}, {cluster: c, name: "b", lease: "volumes", run: control}}
	if !c.bugs.scheduled {
		return processes
	}
	lease := ""
	if c.oneScheduler {
		lease = "pods"
	}
	return append(processes, &process{cluster: c, name: "s", lease: lease, run: schedule}, &process{cluster: c, name: "t", lease: lease, run: schedule})
}

// simulate lets a cluster live for so many steps, and returns it with what went wrong.
func simulate(t *testing.T, seed uint64, steps int, planted bugs) (c *cluster) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c = newCluster(seed, planted)
		ctx := t.Context()
		for _, name := range nodeNames {
			c.make(ctx, newNode(name))
			c.heal(ctx, name)
		}
		for _, name := range []string{"fast", "late", "manual"} {
			class := newClass(name)
			if planted.scheduled && name == "manual" {
				*class.VolumeBindingMode = storagev1.VolumeBindingWaitForFirstConsumer
			}
			c.make(ctx, class)
		}
		for _, name := range madeByPeople {
			c.stock(ctx, name)
		}
		processes := c.processes()
		if planted.scheduled {
			c.furnish(ctx)
		}
		for _, p := range processes {
			p.start(t)
		}
		for i := 0; i < steps && c.isWhole(); i++ {
			c.step(ctx, t, processes)
			c.check(ctx)
		}
		if c.isWhole() {
			c.settle(ctx, processes)
		}
		for _, p := range processes {
			p.stop()
		}
		c.turns.Sleep(stoppedFor) // What they were stopped in ends.
	})
	return c
}

// step does one thing of those that happen in a cluster, and lets some time pass.
func (c *cluster) step(ctx context.Context, t *testing.T, processes []*process) {
	t.Helper()
	node, p := nodeNames[c.luck(len(nodeNames))], processes[c.luck(len(processes))]
	switch luck := c.luck(100); {
	case luck < 30 && c.bugs.scheduled:
		c.tenants(ctx)
	case luck < 30:
		c.users(ctx, node)
	case luck < 36:
		c.administrators(ctx)
	case luck < 39:
		p.kill()
		p.start(t)
	case luck < 42:
		p.network.cutOff(true)
	case luck < 47:
		p.network.cutOff(false)
	case luck < 49:
		c.fence(ctx, node)
	case luck < 52:
		c.release(ctx, node)
	case luck < 56:
		c.sicken(ctx, node)
	case luck < 59:
		c.heal(ctx, node)
	case luck < 60:
		c.reboot(node)
	default:
		c.agent(ctx, node)
	}
	for _, p := range processes {
		p.network.rest()
	}
	c.turns.Sleep(time.Duration(c.luck(int(longestStep/time.Millisecond))) * time.Millisecond)
}

// users make pods and claims, want more, and delete them.
func (c *cluster) users(ctx context.Context, node string) {
	claim, pod := claimNames[c.luck(len(claimNames))], podNames[c.luck(len(podNames))]
	switch luck := c.luck(30); {
	case luck < 6:
		c.make(ctx, newClaim(claim, classOfClaim[claim]))
	case luck < 8: // It was a mistake.
		claim = claimNames[c.luck(2)]
		c.make(ctx, newClaim(claim, classOfClaim[claim]))
		c.turns.Sleep(time.Duration(c.luck(10)) * time.Second / 2)
		c.remove(ctx, store.Key{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: claim})
	case luck < 16:
		c.schedule(ctx, node, newPod(pod, node, claim))
	case luck < 18:
		c.schedule(ctx, node, newEphemeralPod("e-1", node, "fast"))
	case luck < 24:
		c.remove(ctx, store.Key{Kind: store.Pods, Namespace: "default", Name: pod})
	case luck < 25:
		c.remove(ctx, store.Key{Kind: store.Pods, Namespace: "default", Name: "e-1"})
	case luck < 27:
		c.remove(ctx, store.Key{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: claim})
	default:
		c.request(ctx, claim, []string{"1Gi", "2Gi", "3Gi", "4Gi", "20Gi"}[c.luck(5)])
	}
}

// schedule makes a pod on a node that is well, as a scheduler does.
func (c *cluster) schedule(ctx context.Context, name string, pod *v1.Pod) {
	if node, err := store.Get[*v1.Node](ctx, c.world, "", name); err == nil && isReady(node) && !isFenced(node) {
		c.make(ctx, pod)
	}
}

// administrators make volumes, use what was kept again, and delete what they do not want any more.
func (c *cluster) administrators(ctx context.Context) {
	name := madeByPeople[c.luck(len(madeByPeople))]
	switch c.luck(6) {
	case 0:
		c.remove(ctx, store.Key{Kind: store.PersistentVolumes, Name: name})
	case 1:
		claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.world, "default", c.claimToBreak(ctx))
		if err == nil && claim.Spec.VolumeName != "" {
			c.remove(ctx, store.Key{Kind: store.PersistentVolumes, Name: claim.Spec.VolumeName})
		}
	case 2, 3:
		c.stock(ctx, name)
	default:
		c.reuse(ctx, name)
	}
}

// claimToBreak returns the name of a claim, which may be there.
func (c *cluster) claimToBreak(ctx context.Context) string {
	if c.bugs.scheduled {
		return c.someClaim(ctx)
	}
	return claimNames[c.luck(len(claimNames))]
}

// stock makes a volume by hand, on unused storage. One in two is meant for one claim.
func (c *cluster) stock(ctx context.Context, name string) {
	if len(c.mountsOf(name)) > 0 || len(c.backend.Nodes(name)) > 0 {
		return
	}
	if _, err := store.Get[*v1.PersistentVolume](ctx, c.world, "", name); err == nil {
		return
	}
	size, there := c.backend.Size(name)
	if !there {
		size = 2 << 30
		if err := c.backend.Create(name, size); err != nil {
			c.violate("%v", err)
		}
	}
	c.wipe(name)
	pv := newVolume(name, size)
	if c.bugs.scheduled {
		c.zones[name] = zoneOfStock[name]
		inZone(pv, zoneOfStock[name])
	} else if c.luck(2) == 0 {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: claimNames[3+c.luck(2)]}
	}
	c.make(ctx, pv)
}

// reuse gives a volume that was kept to the next claim, when no node has it and it is empty.
func (c *cluster) reuse(ctx context.Context, name string) {
	pv, err := store.Get[*v1.PersistentVolume](ctx, c.world, "", name)
	if err != nil || pv.Status.Phase != v1.VolumeReleased || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRetain ||
		len(c.mountsOf(name)) > 0 || len(c.backend.Nodes(name)) > 0 {
		return
	}
	c.wipe(name)
	pv.Spec.ClaimRef = nil
	delete(pv.Annotations, "pv.kubernetes.io/bound-by-controller")
	_, err = store.Update(ctx, c.world, pv)
	c.note("volume %s is there for the next claim: %v", name, err)
}

// request asks for another size, not for less than there is.
func (c *cluster) request(ctx context.Context, name, size string) {
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.world, "default", name)
	if err != nil || claim.Status.Phase != v1.ClaimBound {
		return
	}
	has := claim.Status.Capacity[v1.ResourceStorage]
	if want := resource.MustParse(size); want.Cmp(has) >= 0 {
		claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: want}
		_, err = store.Update(ctx, c.world, claim)
		c.note("claim %s asks for %s: %v", name, size, err)
	}
}

// make creates an object, unless it is there.
func (c *cluster) make(ctx context.Context, obj store.Object) {
	if _, err := c.world.Create(ctx, obj); err == nil {
		c.note("new: %T %s", obj, obj.GetName())
	}
}

func (c *cluster) remove(ctx context.Context, key store.Key) {
	if err := c.world.Delete(ctx, key, store.Preconditions{}); err == nil {
		c.note("deleted: %s", key)
	}
}

func newClass(name string) *storagev1.StorageClass {
	grows, late, provisioner := true, storagev1.VolumeBindingImmediate, fake.DefaultPluginName
	switch name {
	case "late":
		late = storagev1.VolumeBindingWaitForFirstConsumer
	case "manual":
		provisioner = persistentvolume.NoProvisioner
	}
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, AllowVolumeExpansion: &grows, VolumeBindingMode: &late,
	}
}

func newClaim(name, class string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: claimSpec(class),
	}
}

func claimSpec(class string) v1.PersistentVolumeClaimSpec {
	return v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class,
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
	}
}

func newVolume(name string, size int64) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: "manual",
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)},
			PersistentVolumeReclaimPolicy: policyOf[name],
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: volume.DriverOfPluginName(fake.DefaultPluginName), VolumeHandle: name,
			}},
		},
	}
}

func newPod(name, node string, claims ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{NodeName: node}}
	for i, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("v", i), VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	return pod
}

func newEphemeralPod(name, node, class string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PodSpec{NodeName: node, Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: claimSpec(class)}},
		}}}},
	}
}

// However processes, networks, nodes and storage fail, no volume is on two nodes, none is taken from a node that uses it and is well,
// none is deleted or emptied that a claim or a node has, no claim gets what is another's, no size shrinks, and everything
// converges when the faults stop.
func TestClustersStayWhole(t *testing.T) {
	first, seeds := number(t, "CLUSTER_FIRST", 0), number(t, "CLUSTER_SEEDS", 6)
	counts := staysWhole(t, first, seeds, bugs{})
	happens := []string{"mount", "delete", "expand"}
	if seeds >= 60 {
		happens = append(happens, "recycle", "forced by time")
	}
	for _, what := range happens {
		assert.NotZero(t, counts[what], "a simulation in which there is no %q shows nothing of it", what)
	}
}

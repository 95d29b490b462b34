package attachdetach_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file is the world of the simulation of a cluster: a store behind a network that loses, delays and lies about what became
// of writes; storage whose calls fail; and nodes that use volumes as an agent does.

var errNetwork = errors.New("no route to host")

// network is the way of one process to the store.
type network struct {
	store.Transactor

	cluster *cluster
	mu      sync.Mutex
	off     bool
	ended   []context.CancelFunc // of the watches
}

// cutOff cuts the process off from the store, or ends that.
func (n *network) cutOff(off bool) {
	n.mu.Lock()
	n.off = off
	ended := n.ended
	n.ended = nil
	n.mu.Unlock()
	for _, end := range ended {
		end()
	}
}

// pass takes a request there and its answer back.
func (n *network) pass(request func() error) error {
	n.mu.Lock()
	off := n.off
	n.mu.Unlock()
	luck := n.cluster.luck(100)
	switch {
	case off || luck < 3:
		return errNetwork
	case luck < 12:
		time.Sleep(time.Duration(1+luck) * time.Millisecond)
	}
	err := request()
	if luck == 99 {
		return errNetwork // It took effect, but nobody is told.
	}
	return err
}

func (n *network) Get(ctx context.Context, key store.Key) (obj runtime.Object, err error) {
	err = n.pass(func() error { obj, err = n.Transactor.Get(ctx, key); return err })
	if bug := n.cluster.bugs.get; bug != nil && err == nil {
		return bug(key, obj)
	}
	return obj, err
}

func (n *network) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (list store.List, err error) {
	err = n.pass(func() error { list, err = n.Transactor.List(ctx, kind, namespace); return err })
	if bug := n.cluster.bugs.list; bug != nil {
		list = bug(kind, list)
	}
	return list, err
}

func (n *network) Create(ctx context.Context, obj runtime.Object) (created runtime.Object, err error) {
	err = n.pass(func() error { created, err = n.Transactor.Create(ctx, obj); return err })
	return created, err
}

func (n *network) Update(ctx context.Context, obj runtime.Object) (updated runtime.Object, err error) {
	err = n.pass(func() error { updated, err = n.Transactor.Update(ctx, obj); return err })
	return updated, err
}

func (n *network) Delete(ctx context.Context, key store.Key, p store.Preconditions) error {
	return n.pass(func() error { return n.Transactor.Delete(ctx, key, p) })
}

func (n *network) Commit(ctx context.Context, t store.Transaction) (objects []runtime.Object, err error) {
	err = n.pass(func() error { objects, err = n.Transactor.Commit(ctx, t); return err })
	return objects, err
}

func (n *network) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (events <-chan store.Event, err error) {
	ctx, end := context.WithCancel(ctx)
	err = n.pass(func() error { events, err = n.Transactor.Watch(ctx, kind, namespace, version); return err })
	if err != nil {
		end()
		return nil, err
	}
	n.mu.Lock()
	n.ended = append(n.ended, end)
	n.mu.Unlock()
	return events, nil
}

// bugs are what is planted.
type bugs struct {
	// noElection lets every process lead.
	noElection bool
	// get changes what reads return, list what lists do.
	get  func(key store.Key, obj runtime.Object) (runtime.Object, error)
	list func(kind schema.GroupVersionKind, list store.List) store.List
}

// cluster is the world: its store, its storage, and the mounts of its nodes.
type cluster struct {
	memory  *store.Memory
	backend *fake.Backend
	bugs    bugs
	started time.Time

	mu         sync.Mutex
	random     *rand.Rand
	calm       bool
	mounted    map[string]map[string]bool // by handle and node
	violations []string
}

func (c *cluster) luck(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calm {
		return n / 2
	}
	return c.random.IntN(n)
}

func (c *cluster) violate(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, fmt.Sprintf("%v: ", time.Since(c.started))+fmt.Sprintf(format, args...))
}

// mountsOf returns the nodes that have a volume mounted.
func (c *cluster) mountsOf(handle string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var nodes []string
	for node := range c.mounted[handle] {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	return nodes
}

// setMounted mounts a volume on a node, or unmounts it. It is there that two nodes would destroy each other's data.
func (c *cluster) setMounted(handle, node string, mounts bool) {
	c.mu.Lock()
	if c.mounted[handle] == nil {
		c.mounted[handle] = map[string]bool{}
	}
	if mounts {
		c.mounted[handle][node] = true
	} else {
		delete(c.mounted[handle], node)
	}
	c.mu.Unlock()
	if !mounts {
		return
	}
	if nodes := c.mountsOf(handle); len(nodes) > 1 {
		c.violate("volume %s is mounted on %v", handle, nodes)
	}
	if !slices.Contains(c.backend.Nodes(handle), types.NodeName(node)) {
		c.violate("volume %s is mounted on %s and attached to %v", handle, node, c.backend.Nodes(handle))
	}
}

// noMounts is the mounter of a plugin that mounts nothing here.
type noMounts struct{ mount.Interface }

// storage is a plugin that looks at what it is asked for, and whose calls fail now and then.
type storage struct {
	*fake.Plugin

	cluster *cluster
}

func (c *cluster) newStorage() *storage {
	return &storage{Plugin: fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}, Backend: c.backend}), cluster: c}
}

// fault has the next call of a method fail sometimes.
func (s *storage) fault(method fake.Method) {
	switch luck := s.cluster.luck(100); {
	case luck < 4:
		s.Inject(method, fake.Fail(volume.Transient(errors.New("busy"))))
	case luck < 8:
		s.Inject(method, fake.FailAfter(volume.Uncertain(errNetwork)))
	case luck < 10:
		s.Inject(method, fake.Fail(errors.New("refused")))
	}
}

func (s *storage) NewAttacher() (volume.Attacher, error) {
	a, err := s.Plugin.NewAttacher()
	return attacher{a, s}, err
}

type attacher struct {
	volume.Attacher

	storage *storage
}

func (a attacher) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	handle := spec.PersistentVolume.Spec.CSI.VolumeHandle
	for _, other := range a.storage.cluster.backend.Nodes(handle) {
		if other != node {
			a.storage.cluster.violate("volume %s is attached to %s, and is to be attached to %s", handle, other, node)
		}
	}
	a.storage.fault(fake.MethodAttach)
	return a.Attacher.Attach(ctx, spec, node)
}

func (s *storage) NewDetacher() (volume.Detacher, error) {
	d, err := s.Plugin.NewDetacher()
	return detacher{d, s}, err
}

type detacher struct {
	volume.Detacher

	storage *storage
}

func (d detacher) Detach(ctx context.Context, name string, node types.NodeName) error {
	if slices.Contains(d.storage.cluster.mountsOf(name), string(node)) {
		d.storage.cluster.violate("volume %s is detached from %s, which has it mounted", name, node)
	}
	d.storage.fault(fake.MethodDetach)
	return d.Detacher.Detach(ctx, name, node)
}

func (s *storage) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	d, err := s.Plugin.NewDeleter(spec)
	return deleter{d, s, spec.PersistentVolume}, err
}

type deleter struct {
	volume.Deleter

	storage *storage
	pv      *v1.PersistentVolume
}

func (d deleter) Delete(ctx context.Context) error {
	c := d.storage.cluster
	if nodes := c.mountsOf(d.pv.Name); len(nodes) > 0 {
		c.violate("volume %s is deleted and mounted on %v", d.pv.Name, nodes)
	}
	ref := d.pv.Spec.ClaimRef
	claim, err := store.Get[*v1.PersistentVolumeClaim](context.WithoutCancel(ctx), c.memory, ref.Namespace, ref.Name)
	if err == nil && claim.UID == ref.UID {
		c.violate("volume %s is deleted, and claim %s is there", d.pv.Name, ref.Name)
	}
	d.storage.fault(fake.MethodDelete)
	return d.Deleter.Delete(ctx)
}

// agent does one round of what the volume manager of a node does, each step of which may be the last one of the round: lets go of
// what no pod wants, says what it uses, and begins to use what it is told is attached. rounds are as far apart as luck has it.
func (c *cluster) agent(ctx context.Context, name string) {
	node, err := store.Get[*v1.Node](ctx, c.memory, "", name)
	if err != nil || isFenced(node) {
		return
	}
	wanted := c.wantedOn(ctx, name)
	var uses []string
	for handle := range c.handles() {
		switch {
		case wanted[handle] && slices.Contains(attachedTo(node), handle):
			uses = append(uses, handle)
		case wanted[handle] && slices.Contains(c.mountsOf(handle), name):
			uses = append(uses, handle)
		default:
			c.setMounted(handle, name, false)
		}
	}
	slices.Sort(uses)
	if c.luck(10) == 0 {
		return // It is slow, or was restarted.
	}
	node.Status.VolumesInUse = nil
	for _, handle := range uses {
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, unique(handle))
	}
	if node, err = store.Update(ctx, c.memory, node); err != nil || c.luck(10) == 0 {
		return
	}
	c.mountAll(uses, node)
}

// mountAll mounts what the node is told is attached to it.
func (c *cluster) mountAll(handles []string, node *v1.Node) {
	for _, handle := range handles {
		if slices.Contains(attachedTo(node), handle) && !slices.Contains(c.mountsOf(handle), node.Name) {
			c.setMounted(handle, node.Name, true)
		}
	}
}

// handles are all volumes that are or were somewhere.
func (c *cluster) handles() map[string]bool {
	all := map[string]bool{}
	for _, handle := range c.backend.Handles() {
		all[handle] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for handle := range c.mounted {
		all[handle] = true
	}
	return all
}

// wantedOn returns the volumes of the pods on a node.
func (c *cluster) wantedOn(ctx context.Context, node string) map[string]bool {
	wanted := map[string]bool{}
	pods, _, err := store.ListOf[*v1.Pod](ctx, c.memory, "")
	if err != nil {
		return wanted
	}
	for _, pod := range pods {
		for _, name := range volume.ClaimsOfPod(pod) {
			claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.memory, name.Namespace, name.Name)
			if pod.Spec.NodeName == node && err == nil && claim.Status.Phase == v1.ClaimBound {
				wanted[claim.Spec.VolumeName] = true
			}
		}
	}
	return wanted
}

// fence cuts a node off for good: nothing on it can write any more, and then the orchestrator says so.
func (c *cluster) fence(ctx context.Context, name string) {
	for handle := range c.handles() {
		c.setMounted(handle, name, false)
	}
	node, err := store.Get[*v1.Node](ctx, c.memory, "", name)
	if err != nil {
		return
	}
	node.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute}}
	if _, err := store.Update(ctx, c.memory, node); err != nil {
		return
	}
	pods, _, err := store.ListOf[*v1.Pod](ctx, c.memory, "")
	for _, pod := range pods {
		if err == nil && pod.Spec.NodeName == name {
			_ = store.Delete(ctx, c.memory, pod)
		}
	}
}

// release takes a node back that was restarted since.
func (c *cluster) release(ctx context.Context, name string) {
	node, err := store.Get[*v1.Node](ctx, c.memory, "", name)
	if err != nil || !isFenced(node) {
		return
	}
	node.Spec.Taints, node.Status.VolumesInUse = nil, nil
	_, _ = store.Update(ctx, c.memory, node)
}

func isFenced(node *v1.Node) bool { return len(node.Spec.Taints) > 0 }

func unique(handle string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(fake.DefaultPluginName + "/" + handle)
}

func attachedTo(node *v1.Node) []string {
	var handles []string
	for _, at := range node.Status.VolumesAttached {
		handles = append(handles, string(at.Name)[len(fake.DefaultPluginName)+1:])
	}
	return handles
}

func newNode(name string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
}

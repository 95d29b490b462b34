package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/leader"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file has the world of the simulation of snapshots: the storage, the data that was synced into its volumes, and the processes.

// sim is the world. The data of a volume is a number: that of its last write, counted over all volumes.
type sim struct {
	memory  *store.Memory
	backend *fake.Backend
	mounter *fake.Mounter
	turns   *simulation.Scheduler
	steps   *simulation.Trace
	planted simBug
	started time.Time

	mu     sync.Mutex
	random *rand.Rand
	calm   bool
	uids   int
	writes int
	// synced is the data of volumes, taken the data of snapshots, by handle. sources are the source volumes of snapshots.
	synced, taken map[string]int
	sources       map[string]string
	// claimOf is the name of the claim for which a volume was made, restoredFrom the snapshot from which it was made.
	claimOf, restoredFrom map[string]string
	// nameOf has the names of all VolumeSnapshots, by UID. asked has the data of all volumes when they were created, made the data of the
	// source when their snapshots were first seen, and ready the data of the snapshots when they were first ready.
	nameOf      map[types.UID]string
	asked       map[types.UID]map[string]int
	made, ready map[types.UID]int
	// moments has the number of the last write before each snapshot of a group, by handle.
	moments    map[string]int
	violations []string
	trace      []string
	counts     map[string]int
}

// simBug is a planted bug.
type simBug struct {
	// finds is a part of the violation with which the simulation finds the bug.
	finds string
	// late makes the storage take a snapshot some time after its answer.
	late bool
	// rename changes the name of a snapshot in the storage.
	rename func(s *sim, name string) string
	// apart makes the storage make the snapshots of a group one after the other.
	apart bool
	// swap restores every claim from the first snapshot.
	swap bool
	// read returns the object that the controllers read in place of obj; a nil object for none.
	read func(s *sim, obj runtime.Object) runtime.Object
}

func newSim(t *testing.T, seed uint64, planted simBug) *sim {
	t.Helper()
	kinds, err := store.NewKindTable(Kinds()...)
	assert.NoError(t, err)
	steps := &simulation.Trace{Keep: true}
	return &sim{
		memory: store.NewMemory(store.MemoryOptions{Kinds: kinds, History: 20}), backend: fake.NewBackend(), mounter: fake.NewMounter(fake.MounterOptions{}),
		turns: simulation.NewScheduler(rand.New(rand.NewPCG(seed, 2)), steps), steps: steps, planted: planted, started: time.Now(),
		random: rand.New(rand.NewPCG(seed, 1)), synced: map[string]int{}, taken: map[string]int{}, sources: map[string]string{}, moments: map[string]int{},
		claimOf: map[string]string{}, restoredFrom: map[string]string{}, nameOf: map[types.UID]string{}, asked: map[types.UID]map[string]int{},
		made: map[types.UID]int{}, ready: map[types.UID]int{}, counts: map[string]int{},
	}
}

func (s *sim) luck(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calm {
		return n / 2
	}
	return s.random.IntN(n)
}

func (s *sim) isCalm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calm
}

func (s *sim) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

func (s *sim) note(format string, args ...any) {
	line := fmt.Sprintf("%v: ", time.Since(s.started).Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	s.steps.Note(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, line)
}

func (s *sim) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.note("VIOLATION: %s", text)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations = append(s.violations, text)
}

func (s *sim) isWhole() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.violations) == 0
}

// seen returns the object that the controllers read in place of obj.
func (s *sim) seen(obj runtime.Object) runtime.Object {
	if s.planted.read == nil {
		return obj
	}
	return s.planted.read(s, obj)
}

// withUID returns a new object with a UID. For a VolumeSnapshot it records the present data of all volumes.
func (s *sim) withUID(obj runtime.Object) runtime.Object {
	made, is := obj.DeepCopyObject().(store.Object)
	if !is || made.GetUID() != "" {
		return obj
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids++
	made.SetUID(types.UID(fmt.Sprintf("u%04d", s.uids)))
	if _, is := made.(*snapshotv1.VolumeSnapshot); is {
		s.nameOf[made.GetUID()], s.asked[made.GetUID()] = made.GetName(), maps.Clone(s.synced)
	}
	return made
}

// disks is the plugin of one process.
type disks struct {
	*fake.Plugin

	sim     *sim
	process string
}

// begin waits for the turn of a call, for a random time. It returns an error if the call is not to be made.
func (d *disks) begin(ctx context.Context, what string) error {
	d.sim.turns.Take(d.process + " " + what + " by " + whoAsks())
	switch luck := d.sim.luck(100); {
	case luck < 5:
		return volume.Transient(errors.New("busy"))
	case luck < 8:
		return errors.New("refused")
	case luck < 20:
		pause(ctx, time.Duration(luck)*time.Second/2)
		d.sim.turns.Take(d.process + " " + what + " at last by " + whoAsks())
	}
	if ctx.Err() != nil {
		return volume.Uncertain(ctx.Err())
	}
	return nil
}

// end loses the answer of some calls at random.
func (d *disks) end(err error) error {
	if err == nil && d.sim.luck(100) < 8 {
		return volume.Uncertain(errLink)
	}
	return err
}

// CreateSnapshot implements volume.SnapshottableVolumePlugin.
func (d *disks) CreateSnapshot(ctx context.Context, options volume.SnapshotOptions) (volume.Snapshot, error) {
	s, handle := d.sim, options.Source.PersistentVolume.Spec.CSI.VolumeHandle
	if err := d.begin(ctx, "snapshots "+handle); err != nil {
		return volume.Snapshot{}, err
	}
	if s.planted.rename != nil {
		options.Name = s.planted.rename(s, options.Name)
	}
	made, err := d.Plugin.CreateSnapshot(ctx, options)
	s.note("snapshot %s of %s: %v", options.Name, handle, err)
	if err != nil {
		return made, err
	}
	s.mu.Lock()
	if _, there := s.taken[made.Handle]; !there {
		s.taken[made.Handle], s.sources[made.Handle] = s.synced[handle], handle
		s.counts["snapshot"]++
	}
	s.mu.Unlock()
	return made, d.end(nil)
}

// GetSnapshot implements volume.SnapshottableVolumePlugin.
func (d *disks) GetSnapshot(ctx context.Context, handle string) (volume.Snapshot, error) {
	if err := d.begin(ctx, "looks at snapshot "+handle); err != nil {
		return volume.Snapshot{}, err
	}
	return d.Plugin.GetSnapshot(ctx, handle)
}

// DeleteSnapshot implements volume.SnapshottableVolumePlugin. It reports the deletion of a snapshot whose VolumeSnapshot exists.
func (d *disks) DeleteSnapshot(ctx context.Context, handle string) error {
	if err := d.begin(ctx, "deletes snapshot "+handle); err != nil {
		return err
	}
	s := d.sim
	for _, snap := range simAll[*snapshotv1.VolumeSnapshot](ctx, s) {
		if content := s.contentOf(ctx, snap); content != nil && handleOf(content) == handle && snap.DeletionTimestamp == nil {
			s.violate("snapshot %s of %s is deleted, and %s is there", handle, s.sources[handle], snap.Name)
		}
	}
	err := d.Plugin.DeleteSnapshot(ctx, handle)
	s.note("delete snapshot %s: %v", handle, err)
	if err == nil {
		s.mu.Lock()
		delete(s.taken, handle)
		s.counts["deleted"]++
		s.mu.Unlock()
	}
	return d.end(err)
}

// CreateGroupSnapshot implements volume.GroupSnapshottableVolumePlugin.
func (d *disks) CreateGroupSnapshot(ctx context.Context, options volume.GroupSnapshotOptions) (volume.GroupSnapshot, error) {
	s := d.sim
	if err := d.begin(ctx, "snapshots group "+options.Name); err != nil {
		return volume.GroupSnapshot{}, err
	}
	made, err := d.Plugin.CreateGroupSnapshot(ctx, options)
	s.note("snapshots of group %s: %v", options.Name, err)
	if err != nil {
		return made, err
	}
	for at, member := range made.Snapshots {
		if at > 0 && s.planted.apart {
			s.write()
		}
		s.mu.Lock()
		if _, there := s.taken[member.Handle]; !there {
			handle := options.Sources[at].PersistentVolume.Spec.CSI.VolumeHandle
			s.taken[member.Handle], s.sources[member.Handle], s.moments[member.Handle] = s.synced[handle], handle, s.writes
			s.counts["snapshot of a group"]++
		}
		s.mu.Unlock()
	}
	return made, d.end(nil)
}

// GetGroupSnapshot implements volume.GroupSnapshottableVolumePlugin.
func (d *disks) GetGroupSnapshot(ctx context.Context, handle string, members []string) (volume.GroupSnapshot, error) {
	if err := d.begin(ctx, "looks at group "+handle); err != nil {
		return volume.GroupSnapshot{}, err
	}
	return d.Plugin.GetGroupSnapshot(ctx, handle, members)
}

// DeleteGroupSnapshot implements volume.GroupSnapshottableVolumePlugin. It reports the deletion of a group whose VolumeGroupSnapshot exists.
func (d *disks) DeleteGroupSnapshot(ctx context.Context, handle string, members []string) error {
	if err := d.begin(ctx, "deletes group "+handle); err != nil {
		return err
	}
	s := d.sim
	for _, group := range simAll[*groupv1.VolumeGroupSnapshot](ctx, s) {
		if content := s.contentOfGroup(ctx, group); content != nil && groupHandleOf(content) == handle && group.DeletionTimestamp == nil {
			s.violate("group %s is deleted in the storage, and %s is there", handle, group.Name)
		}
	}
	for _, content := range simAll[*snapshotv1.VolumeSnapshotContent](ctx, s) {
		if slices.Contains(members, handleOf(content)) && content.DeletionTimestamp == nil {
			s.violate("group %s is deleted in the storage, and content %s has a snapshot of it", handle, content.Name)
		}
	}
	err := d.Plugin.DeleteGroupSnapshot(ctx, handle, members)
	s.note("delete group %s: %v", handle, err)
	if err == nil {
		s.mu.Lock()
		for _, member := range members {
			delete(s.taken, member)
		}
		s.counts["group deleted"]++
		s.mu.Unlock()
	}
	return d.end(err)
}

// NewProvisioner implements volume.ProvisionableVolumePlugin.
func (d *disks) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	p, err := d.Plugin.NewProvisioner(options)
	return simProvisioner{p, d, options}, err
}

type simProvisioner struct {
	volume.Provisioner

	disks   *disks
	options volume.VolumeOptions
}

// Provision implements volume.Provisioner. A planted bug makes the volume from another snapshot here.
func (p simProvisioner) Provision(ctx context.Context, node *v1.Node, topologies []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	if err := p.disks.begin(ctx, "provisions "+p.options.PVName); err != nil {
		return nil, err
	}
	pv, err := p.Provisioner.Provision(ctx, node, topologies)
	s := p.disks.sim
	s.note("provision %s for %s: %v", p.options.PVName, p.options.PVC.Name, err)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if _, there := s.synced[pv.Name]; !there {
		s.synced[pv.Name], s.claimOf[pv.Name] = 0, p.options.PVC.Name
		if from := p.options.Snapshot; from != nil {
			s.synced[pv.Name], s.restoredFrom[pv.Name] = s.taken[from.Handle], from.Handle
			s.counts["restored"]++
		}
	}
	s.mu.Unlock()
	return pv, p.disks.end(nil)
}

// NewDeleter implements volume.DeletableVolumePlugin.
func (d *disks) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	deleter, err := d.Plugin.NewDeleter(spec)
	return simDeleter{deleter, d, spec.Name()}, err
}

type simDeleter struct {
	volume.Deleter

	disks *disks
	name  string
}

// Delete implements volume.Deleter.
func (d simDeleter) Delete(ctx context.Context) error {
	if err := d.disks.begin(ctx, "deletes "+d.name); err != nil {
		return err
	}
	err := d.Deleter.Delete(ctx)
	if err == nil {
		d.disks.sim.mu.Lock()
		delete(d.disks.sim.synced, d.name)
		d.disks.sim.mu.Unlock()
	}
	return err
}

// simProcess is one of the processes that run the controllers of claims and snapshots: one leads, the others stand by.
type simProcess struct {
	sim   *sim
	name  string
	lives int
	link  *link
	stop  func()
}

// start starts the process, under a new name.
func (p *simProcess) start(t *testing.T) {
	t.Helper()
	p.lives++
	holder := fmt.Sprintf("%s-%d", p.name, p.lives)
	p.link = p.sim.newLink(holder)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		options := leader.Options{Name: types.NamespacedName{Namespace: "default", Name: "snapshots"}, Holder: holder}
		_ = leader.Run(ctx, p.link, options, func(ctx context.Context, way store.Store) error {
			p.sim.note("process %s leads", holder)
			p.sim.control(turnContext{ctx, p.sim, holder}, t, holder, way)
			return nil
		})
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		p.sim.turns.Await(done)
	})
}

// kill ends the process. Usually it cannot write anything more.
func (p *simProcess) kill() {
	if p.sim.luck(4) > 0 {
		p.link.cutOff(true)
	}
	p.stop()
}

// control runs the controllers of a process until ctx ends.
func (s *sim) control(ctx context.Context, t *testing.T, process string, way store.Store) {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/nowhere", NodeName: "controller"})
	assert.NoError(t, err)
	mgr := volume.NewVolumePluginMgr(host)
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: s.mounter, Backend: s.backend, UnreadySnapshots: true})
	assert.NoError(t, mgr.InitPlugins(ctx, &disks{plugin, s, process}))
	snapshots := New(mgr, way, Options{Workers: 2, MaxBackoff: 5 * time.Second, Jitter: -1})
	claims := persistentvolume.New(mgr, way, persistentvolume.Options{
		Workers: 2, MaxBackoff: 5 * time.Second, Jitter: -1, Snapshots: named{snapshots, s.planted.swap},
	})
	var all sync.WaitGroup
	all.Go(func() { assert.NoError(t, snapshots.Run(ctx)) })
	all.Go(func() { _ = claims.Run(ctx) })
	all.Wait()
}

// named finds the snapshot that a claim names, or the first one with the planted bug swap.
type named struct {
	*Controller

	swap bool
}

// Snapshot implements persistentvolume.Snapshots.
func (n named) Snapshot(ctx context.Context, claim *v1.PersistentVolumeClaim, name string) (volume.Snapshot, string, error) {
	if n.swap {
		name = simSnapshots[0]
	}
	return n.Controller.Snapshot(ctx, claim, name)
}

// simAll returns the objects of a kind in the store.
func simAll[T store.Object](ctx context.Context, s *sim) []T {
	objects, _, err := store.ListOf[T](context.WithoutCancel(ctx), s.memory, "")
	if err != nil {
		s.violate("%v", err)
	}
	return objects
}

// contentOf returns the content to which a snapshot is bound; nil for none.
func (s *sim) contentOf(ctx context.Context, snap *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshotContent {
	content, err := store.Get[*snapshotv1.VolumeSnapshotContent](context.WithoutCancel(ctx), s.memory, "", boundTo(snap))
	if err != nil {
		return nil
	}
	return content
}

// contentOfGroup returns the content to which a group is bound; nil for none.
func (s *sim) contentOfGroup(ctx context.Context, group *groupv1.VolumeGroupSnapshot) *groupv1.VolumeGroupSnapshotContent {
	content, err := store.Get[*groupv1.VolumeGroupSnapshotContent](context.WithoutCancel(ctx), s.memory, "", groupBoundTo(group))
	if err != nil {
		return nil
	}
	return content
}

// makeReady makes the snapshots in the storage ready. With the planted bug late, they get the present data of their volumes.
func (s *sim) makeReady() {
	for _, snap := range s.backend.Snapshots() {
		if !s.isCalm() && s.luck(3) > 0 {
			continue
		}
		if err := s.backend.MakeSnapshotReady(snap.Handle); err != nil {
			s.violate("%v", err)
		}
		if s.planted.late {
			s.mu.Lock()
			s.taken[snap.Handle] = s.synced[s.sources[snap.Handle]]
			s.mu.Unlock()
		}
	}
}

// make creates an object as a user does. Before the next change, all watchers have received it.
func (s *sim) make(ctx context.Context, obj store.Object) {
	if _, err := s.memory.Create(ctx, s.withUID(obj)); err == nil {
		s.note("new: %T %s", obj, obj.GetName())
	}
	synctest.Wait()
}

func (s *sim) remove(ctx context.Context, obj store.Object) {
	key, err := store.KindsOf(s.memory).KeyOf(obj)
	if err == nil && s.memory.Delete(ctx, key, store.Preconditions{}) == nil {
		s.note("deleted: %s", key)
	}
	synctest.Wait()
}

// write writes and syncs new data into a volume.
func (s *sim) write() {
	s.mu.Lock()
	handles := slices.Sorted(maps.Keys(s.synced))
	s.mu.Unlock()
	if len(handles) == 0 {
		return
	}
	handle := handles[s.luck(len(handles))]
	s.mu.Lock()
	s.writes++
	s.synced[handle] = s.writes
	s.mu.Unlock()
	s.note("%d is synced into %s", s.writes, handle)
}

// says reports whether a violation has the text.
func (s *sim) says(what string) bool {
	return slices.ContainsFunc(s.violations, func(text string) bool { return strings.Contains(text, what) })
}

package volumekit_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// FuzzObjectsAsEmbeddersWriteThem drives a manager and the controller of claims, on real directories, with objects as people's own
// orchestrators write them: any UID, no node name, no status or a wrong one, names up to the limit, the same object twice, fields that
// change. The bytes are what the embedder does. Each volume that a pod has gets a mark of its owner. The mark must stay while a pod
// uses the volume, and no other owner may see it. With controlled, a controller attaches volumes, and there are pods on another
// node, which has no agent.
func FuzzObjectsAsEmbeddersWriteThem(f *testing.F) {
	f.Fuzz(func(t *testing.T, controlled bool, steps []byte) {
		if len(steps) > 400 {
			return
		}
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			e := newEmbedder(t, dir, steps)
			if controlled {
				e.disks = &disks{nodes: make(map[string]types.NodeName), users: make(map[string]string)}
				e.makeNode()
			}
			e.start()
			for len(e.steps) > 0 {
				e.act()
				e.check()
			}
			e.end()
		})
	})
}

// embedder is an orchestrator that fulfils nothing that it need not.
type embedder struct {
	t     *testing.T
	dir   string
	steps []byte

	objects *store.Memory
	manager *volumemanager.Manager
	stop    func()
	// pods are those that were added and not removed, by UID.
	pods map[types.UID]*embeddedPod
	// marked are the claims, by UID, and the volumes of pods, by their lives, whose storage has a mark.
	marked map[string]bool
	lives  int
	// disks says which volumes are attached; nil: they need not be.
	disks *disks
}

// embeddedPod is a pod as the embedder believes it added.
type embeddedPod struct {
	object *v1.Pod
	// life tells this addition of the pod from others.
	life string
	// marks are the owners of the volumes that it was seen to have, by path.
	marks map[string]string
}

func newEmbedder(t *testing.T, dir string, steps []byte) *embedder {
	t.Helper()
	e := &embedder{
		t: t, dir: dir, steps: steps, objects: store.NewMemory(store.MemoryOptions{}),
		pods: make(map[types.UID]*embeddedPod), marked: make(map[string]bool),
	}
	_, err := store.Create(t.Context(), e.objects, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: hostpath.Name})
	require.NoError(t, err)
	return e
}

// start makes a new process of the agent, which adds the pods that are to run.
func (e *embedder) start() {
	e.t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(e.dir, "lib"), NodeName: "node-1"})
	require.NoError(e.t, err)
	plugins := volume.NewVolumePluginMgr(host)
	options := volumemanager.Options{
		Store: e.objects, RuntimeDir: filepath.Join(e.dir, "run"), StateDir: filepath.Join(e.dir, "state"), Orphans: volumemanager.OrphansAreRemoved,
		NoMountChecks: true, // Its plugins mount nothing, and a poll of the kernel would stop the clock of the bubble.
	}
	paths := hostpath.New(hostpath.Options{BaseDir: filepath.Join(e.dir, "volumes")})
	if e.disks == nil {
		require.NoError(e.t, plugins.InitPlugins(e.t.Context(), paths, emptydir.New(emptydir.Options{})))
	} else {
		options.AttachedBy = volumemanager.AttachedByController
		require.NoError(e.t, plugins.InitPlugins(e.t.Context(), &attachedPaths{paths, e}, emptydir.New(emptydir.Options{})))
	}
	m, err := volumemanager.New(plugins, options)
	require.NoError(e.t, err)
	run := []func(context.Context) error{m.Run, persistentvolume.New(plugins, e.objects, persistentvolume.Options{NodeName: "node-1", Mounts: m}).Run}
	if e.disks != nil {
		run = append(run, attachdetach.New(plugins, e.objects, attachdetach.Options{}).Run)
	}
	ctx, cancel := context.WithCancel(e.t.Context())
	ended := make(chan error, len(run))
	for _, one := range run {
		go func() { ended <- one(ctx) }()
	}
	e.manager = m
	e.stop = func() {
		stopping, ends := context.WithTimeout(e.t.Context(), time.Minute)
		defer ends()
		_ = m.Stop(stopping) // What is left is the next one's.
		cancel()
		for range run {
			require.NoError(e.t, <-ended)
		}
	}
	for _, p := range e.pods {
		require.NoError(e.t, m.AddPod(e.t.Context(), p.object))
	}
	m.PodsComplete()
}

// next returns the next byte of the steps, below n.
func (e *embedder) next(n int) int {
	if len(e.steps) == 0 {
		return 0
	}
	b := e.steps[0]
	e.steps = e.steps[1:]
	return int(b) % n
}

// Names and UIDs meet where a library joins them, cuts them or takes them for what they are not.
var (
	uids        = []types.UID{"42", "uid-x", "uid-x-y", "UPPER", "a b", "é", "x\n", "..", "a/b", "", types.UID(strings.Repeat("u", 200)), types.UID(strings.Repeat("u", 255))}
	volumeNames = []string{"z", "y-z", "data", "x", strings.Repeat("v", 63), "Bad_Name", ""}
	claimNames  = []string{"one", "two", strings.Repeat("c", 253)}
	nodeNames   = []string{"node-1", "node-1", "node-1", "node-2", ""}
	phases      = []v1.PodPhase{"", v1.PodRunning, v1.PodFailed, v1.PodSucceeded, "Strange"}
)

func (e *embedder) act() {
	switch e.next(11) {
	case 0, 1, 2:
		e.addPod(e.newPod(uids[e.next(len(uids))]))
	case 3:
		e.removePod(uids[e.next(len(uids))])
	case 4:
		e.updatePod(uids[e.next(len(uids))])
	case 5:
		e.create(e.newClaim(claimNames[e.next(len(claimNames))]))
	case 6:
		e.deleteClaim(claimNames[e.next(len(claimNames))])
	case 7:
		e.changeClaim(claimNames[e.next(len(claimNames))])
	case 8:
		e.changeStoredPod(uids[e.next(len(uids))])
	case 9:
		seconds := 1 + e.next(200)
		if e.disks != nil {
			e.changeNode(seconds)
		}
		time.Sleep(time.Duration(seconds) * time.Second)
	default:
		e.stop()
		e.start()
	}
	if e.next(2) == 0 {
		synctest.Wait()
	}
}

// makeNode makes the object of both nodes, with no status, as an orchestrator that knows no volumes.
func (e *embedder) makeNode() {
	for _, name := range []string{"node-1", "node-2"} {
		_, _ = store.Create(e.t.Context(), e.objects, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}) // It may be there.
	}
}

// changeNode removes the object of the node, makes it again, or forgets its status.
func (e *embedder) changeNode(what int) {
	node, err := store.Get[*v1.Node](e.t.Context(), e.objects, "", "node-1")
	switch {
	case err != nil:
		e.makeNode()
	case what%4 == 0:
		require.NoError(e.t, store.Delete(e.t.Context(), e.objects, node))
	case what%4 == 1:
		node.Status = v1.NodeStatus{}
		_, _ = e.objects.Update(e.t.Context(), node) // The manager may have written it meanwhile.
	}
}

func (e *embedder) newPod(uid types.UID) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod-" + letterOf(uid), UID: uid}}
	pod.Spec.Containers = []v1.Container{{Name: "main"}}
	if e.disks != nil {
		pod.Spec.NodeName = nodeNames[e.next(len(nodeNames))]
	}
	if e.next(8) == 0 {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: "main"})
	}
	if e.next(4) == 0 {
		pod.Status.Phase = phases[e.next(len(phases))]
	}
	for range 1 + e.next(3) {
		v := v1.Volume{Name: volumeNames[e.next(len(volumeNames))]}
		if e.next(8) == 0 {
			v.Name = e.nameOfAVolume()
		}
		if e.next(2) == 0 {
			v.EmptyDir = &v1.EmptyDirVolumeSource{}
		} else {
			v.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: claimNames[e.next(len(claimNames))], ReadOnly: e.next(8) == 0}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return pod
}

// letterOf returns a letter for a UID, which the name of its pod can have.
func letterOf(uid types.UID) string {
	for i, other := range uids {
		if other == uid {
			return string(rune('a' + i))
		}
	}
	return "other"
}

// nameOfAVolume returns the name of a PersistentVolume, which an inline volume may have, too.
func (e *embedder) nameOfAVolume() string {
	volumes, _, err := store.ListOf[*v1.PersistentVolume](e.t.Context(), e.objects, "")
	require.NoError(e.t, err)
	if len(volumes) == 0 {
		return "z"
	}
	return volumes[0].Name
}

func (e *embedder) addPod(pod *v1.Pod) {
	if e.next(3) > 0 {
		_, _ = store.Create(e.t.Context(), e.objects, pod.DeepCopy()) // The store may refuse it, and so may the embedder not have one.
	}
	if pod.Spec.NodeName == "node-2" {
		return // Its agent is never started.
	}
	if err := e.manager.AddPod(e.t.Context(), pod); err != nil {
		return
	}
	e.believe(pod)
}

// believe takes over that the manager has accepted a pod. A volume that stays as it was keeps its storage; one that has changed, or
// has gone, may have lost what it had.
func (e *embedder) believe(pod *v1.Pod) {
	old := e.pods[pod.UID]
	if old == nil {
		e.lives++
		e.pods[pod.UID] = &embeddedPod{object: pod.DeepCopy(), life: fmt.Sprintf("%s/%d", pod.Name, e.lives), marks: make(map[string]string)}
		return
	}
	for _, v := range old.object.Spec.Volumes {
		if !slices.ContainsFunc(pod.Spec.Volumes, func(now v1.Volume) bool { return reflect.DeepEqual(v, now) }) {
			owner := old.life + "/" + v.Name
			delete(e.marked, owner)
		}
	}
	old.marks = make(map[string]string) // Those that stay are looked for at the next look.
	old.object = pod.DeepCopy()
}

func (e *embedder) updatePod(uid types.UID) {
	old := e.pods[uid]
	if old == nil {
		return
	}
	pod := e.newPod(uid)
	if e.next(2) == 0 {
		pod.Spec.Volumes = old.object.DeepCopy().Spec.Volumes
		pod.Spec.Containers = old.object.DeepCopy().Spec.Containers
		pod.Annotations = map[string]string{"changed": "yes"}
	}
	if e.manager.UpdatePod(e.t.Context(), pod) == nil {
		e.believe(pod)
	}
}

func (e *embedder) removePod(uid types.UID) {
	p := e.pods[uid]
	if p == nil {
		_ = e.manager.RemovePod(uid)
		return
	}
	if e.next(2) == 0 {
		_ = store.Delete(e.t.Context(), e.objects, p.object)
	}
	require.NoError(e.t, e.manager.RemovePod(uid))
	delete(e.pods, uid)
	if e.next(2) == 0 {
		ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
		defer cancel()
		_ = e.manager.WaitForUnmount(ctx, p.object)
	}
	_ = store.Delete(e.t.Context(), e.objects, p.object)
}

func (e *embedder) newClaim(name string) *v1.PersistentVolumeClaim {
	class := "fast"
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	claim.Spec.StorageClassName = &class
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	return claim
}

func (e *embedder) create(object *v1.PersistentVolumeClaim) {
	_, _ = store.Create(e.t.Context(), e.objects, object) // It may be there.
}

func (e *embedder) deleteClaim(name string) {
	claim, err := store.Get[*v1.PersistentVolumeClaim](e.t.Context(), e.objects, "default", name)
	if err == nil {
		_ = store.Delete(e.t.Context(), e.objects, claim)
	}
}

// changeClaim changes what an embedder may get wrong, or right.
func (e *embedder) changeClaim(name string) {
	claim, err := store.Get[*v1.PersistentVolumeClaim](e.t.Context(), e.objects, "default", name)
	if err != nil {
		return
	}
	switch e.next(4) {
	case 0:
		claim.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("2Mi")
	case 1:
		claim.Status = v1.PersistentVolumeClaimStatus{}
	case 2:
		claim.Annotations = nil
	default:
		claim.Labels = map[string]string{"changed": "yes"}
	}
	_, _ = e.objects.Update(e.t.Context(), claim)
}

// changeStoredPod gives the object of a pod a status that is no proof.
func (e *embedder) changeStoredPod(uid types.UID) {
	pod, err := store.Get[*v1.Pod](e.t.Context(), e.objects, "default", "pod-"+letterOf(uid))
	if err != nil {
		return
	}
	pod.Status.Phase = phases[e.next(len(phases))]
	pod.Status.ContainerStatuses = nil
	if e.next(4) == 0 {
		now := metav1.Now()
		pod.DeletionTimestamp = &now
	}
	_, _ = e.objects.Update(e.t.Context(), pod)
}

// check looks at all that pods have: their marks are still there, and no other pod has what they got since.
func (e *embedder) check() {
	e.t.Helper()
	for _, p := range e.pods {
		for path, owner := range p.marks {
			require.Equal(e.t, owner, markAt(e.t, path), "pod %q lost what is at %s", p.object.UID, path)
		}
		ctx, cancel := context.WithTimeout(e.t.Context(), time.Second)
		err := e.manager.WaitForAttachAndMount(ctx, p.object)
		cancel()
		if err == nil {
			e.mark(p)
		}
	}
}

// mark marks the volumes that a pod has with their owners, and proves that they had no other.
func (e *embedder) mark(p *embeddedPod) {
	e.t.Helper()
	volumes := e.manager.GetMountedVolumesForPod(volume.UniquePodName(p.object.UID))
	for i := range p.object.Spec.Volumes {
		v := &p.object.Spec.Volumes[i]
		info, ok := volumes[v.Name]
		require.True(e.t, ok, "pod %q is ready without volume %q", p.object.UID, v.Name)
		owner := p.life + "/" + v.Name
		if v.PersistentVolumeClaim != nil {
			claim, err := store.Get[*v1.PersistentVolumeClaim](e.t.Context(), e.objects, "default", v.PersistentVolumeClaim.ClaimName)
			require.NoError(e.t, err, "the claim of a pod that has its volume")
			owner = string(claim.UID)
		}
		switch found := markAt(e.t, info.Path); {
		case found == owner:
		case found != "":
			e.t.Fatalf("volume %q of pod %q is that of %q at %s, and not of %q", v.Name, p.object.UID, found, info.Path, owner)
		case e.marked[owner]:
			e.t.Fatalf("volume %q of pod %q has lost what was written for %q at %s", v.Name, p.object.UID, owner, info.Path)
		default:
			require.NoError(e.t, os.WriteFile(filepath.Join(info.Path, "owner"), []byte(owner), 0o600))
		}
		e.marked[owner] = true
		p.marks[info.Path] = owner
	}
}

// markAt returns the owner of what is at a path, or nothing.
func markAt(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path, "owner"))
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
	return string(content)
}

// end removes all pods, and proves that the claims that are left have what was written for them, and that nothing else is left.
func (e *embedder) end() {
	e.t.Helper()
	for uid := range e.pods {
		require.NoError(e.t, e.manager.RemovePod(uid))
	}
	clear(e.pods)
	if e.disks != nil {
		e.makeNode() // Without it nothing is detached.
	}
	e.stop()
	e.start()
	require.NoError(e.t, e.manager.WaitForNodeEmpty(e.t.Context()))
	e.stop()
	left, err := filepath.Glob(filepath.Join(e.dir, "lib/pods/*/volumes/*/*"))
	require.NoError(e.t, err)
	require.Empty(e.t, left)
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](e.t.Context(), e.objects, "default")
	require.NoError(e.t, err)
	for _, claim := range claims {
		e.checkClaim(claim)
	}
}

func (e *embedder) checkClaim(claim *v1.PersistentVolumeClaim) {
	e.t.Helper()
	if claim.DeletionTimestamp != nil || !e.marked[string(claim.UID)] {
		return
	}
	pv, err := store.Get[*v1.PersistentVolume](e.t.Context(), e.objects, "", claim.Spec.VolumeName)
	require.NoError(e.t, err)
	require.Equal(e.t, string(claim.UID), markAt(e.t, pv.Spec.HostPath.Path), "claim %q", claim.Name)
}

// disks are volumes that must be attached before they are used, each to one node.
type disks struct {
	mu    sync.Mutex
	nodes map[string]types.NodeName
	users map[string]string
}

// use notes that a pod uses a volume by the name of its PersistentVolume; an empty volume ends that.
func (d *disks) use(pod types.UID, pv, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users[string(pod)+"\x00"+pv] = name
}

// isUsed reports whether a pod uses a volume.
func (d *disks) isUsed(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(slices.Collect(maps.Values(d.users)), name)
}

func (d *disks) nodeOf(name string) types.NodeName {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes[name]
}

func (d *disks) set(name string, node types.NodeName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes[name] = node
}

// attachedPaths is the plugin hostpath whose PersistentVolumes must be attached. It fails the test when one is attached to a second
// node, detached in use, or used without being attached.
type attachedPaths struct {
	*hostpath.Plugin

	e *embedder
}

var _ volume.AttachableVolumePlugin = (*attachedPaths)(nil)

func (p *attachedPaths) NewAttacher() (volume.Attacher, error)               { return p, nil }
func (p *attachedPaths) NewDetacher() (volume.Detacher, error)               { return p, nil }
func (p *attachedPaths) NewDeviceMounter() (volume.DeviceMounter, error)     { return p, nil }
func (p *attachedPaths) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return p, nil }
func (p *attachedPaths) CanAttach(spec *volume.Spec) (bool, error) {
	return spec.PersistentVolume != nil, nil
}
func (p *attachedPaths) CanDeviceMount(*volume.Spec) (bool, error) { return false, nil }
func (p *attachedPaths) GetDeviceMountPath(*volume.Spec) (string, error) {
	return "", volume.ErrUnsupported
}
func (p *attachedPaths) UnmountDevice(context.Context, string) error { return volume.ErrUnsupported }
func (p *attachedPaths) GetDeviceMountRefs(context.Context, string) ([]string, error) {
	return nil, nil
}
func (p *attachedPaths) MountDevice(context.Context, *volume.Spec, string, string, volume.DeviceMounterArgs) error {
	return volume.ErrUnsupported
}

// NewMounter implements [volume.VolumePlugin].
func (p *attachedPaths) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	mounter, err := p.Plugin.NewMounter(spec, pod)
	if err != nil || spec.PersistentVolume == nil {
		return mounter, err
	}
	name, err := p.GetVolumeName(spec)
	return &attachedMounter{mounter, p, name, pod.UID, spec.Name()}, err
}

// NewUnmounter implements [volume.VolumePlugin].
func (p *attachedPaths) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	unmounter, err := p.Plugin.NewUnmounter(name, podUID)
	return &attachedUnmounter{unmounter, p.e.disks, podUID, name}, err
}

// Attach implements [volume.Attacher].
func (p *attachedPaths) Attach(_ context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	name, err := p.GetVolumeName(spec)
	if err != nil {
		return "", err
	}
	if at := p.e.disks.nodeOf(name); at != "" && at != node {
		p.e.t.Errorf("volume %q is attached to %q and then to %q", name, at, node)
	}
	p.e.disks.set(name, node)
	return "/dev/" + spec.Name(), nil
}

// VolumesAreAttached implements [volume.Attacher].
func (p *attachedPaths) VolumesAreAttached(_ context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, node types.NodeName) (map[v1.UniqueVolumeName]bool, error) {
	attached := make(map[v1.UniqueVolumeName]bool)
	for unique, spec := range specs {
		name, err := p.GetVolumeName(spec)
		if err != nil {
			return nil, err
		}
		attached[unique] = p.e.disks.nodeOf(name) == node
	}
	return attached, nil
}

// WaitForAttach implements [volume.Attacher].
func (p *attachedPaths) WaitForAttach(_ context.Context, _ *volume.Spec, devicePath string, _ *v1.Pod) (string, error) {
	return devicePath, nil
}

// Detach implements [volume.Detacher].
func (p *attachedPaths) Detach(_ context.Context, name string, node types.NodeName) error {
	if p.e.disks.nodeOf(name) != node {
		return nil
	}
	if node == "node-1" && p.e.disks.isUsed(name) {
		p.e.t.Errorf("volume %q is detached in use", name)
	}
	p.e.disks.set(name, "")
	return nil
}

// attachedMounter sets up what is attached, and fails the test for what is not.
type attachedMounter struct {
	volume.Mounter

	plugin *attachedPaths
	name   string
	pod    types.UID
	pv     string
}

// attachedUnmounter ends the use of what is attached.
type attachedUnmounter struct {
	volume.Unmounter

	disks *disks
	pod   types.UID
	pv    string
}

// TearDown implements [volume.Unmounter].
func (u *attachedUnmounter) TearDown(ctx context.Context) error {
	err := u.Unmounter.TearDown(ctx)
	if err == nil {
		u.disks.use(u.pod, u.pv, "")
	}
	return err
}

// SetUp implements [volume.Mounter].
func (m *attachedMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	if at := m.plugin.e.disks.nodeOf(m.name); at != "node-1" {
		m.plugin.e.t.Errorf("volume %q is set up and is attached to %q", m.name, at)
	}
	m.plugin.e.disks.use(m.pod, m.pv, m.name)
	return m.Mounter.SetUp(ctx, args)
}

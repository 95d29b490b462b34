package volumemanager

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/files"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/local"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/plugins/nfs"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// childCosts says to a process of this test to be a node whose system calls are counted: the kind of its volumes, how many
// there are, and the directory below which it lives.
const childCosts = "VOLUMEKIT_VOLUMEMANAGER_TEST_COSTS"

// costSteps are the steps of a node whose system calls are counted, in their order.
var costSteps = []string{"start", "add", "look", "list", "update", "restart", "remove"}

// countedNode is a node of pods, each with one volume of the same kind.
type countedNode struct {
	kind, root string
	mounter    *mount.Mounter
	claims     *store.Memory
	objects    *edition
	loops      *loop.Manager
	ended      finished

	plugins *volume.VolumePluginMgr
	pods    []*v1.Pod
	manager *Manager
	stop    func() error
}

// finished counts the operations that have ended.
type finished struct {
	mu    sync.Mutex
	count int
	more  chan struct{} // closed by the next that ends
}

func (*finished) OperationStarted(operationexecutor.OperationInfo)                         {}
func (*finished) OperationStepped(operationexecutor.OperationInfo, operationexecutor.Step) {}

func (f *finished) OperationFinished(operationexecutor.OperationInfo, operationexecutor.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	close(f.more)
	f.more = make(chan struct{})
}

func (f *finished) now() (count int, more <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count, f.more
}

// beCounted takes one step after the other, and waits after each until it is told to go on.
func beCounted(order string) error {
	n := &countedNode{mounter: mount.New(mount.Options{}), claims: store.NewMemory(store.MemoryOptions{}), objects: &edition{}, loops: loop.New(loop.Options{})}
	n.ended.more = make(chan struct{})
	count := 0
	if _, err := fmt.Sscanf(order, "%s %d %s", &n.kind, &count, &n.root); err != nil {
		return err
	}
	ctx := context.Background()
	if err := n.make(ctx, count); err != nil {
		return err
	}
	steps := map[string]func(context.Context) error{
		"start": n.start, "add": n.add, "look": n.look, "list": n.list, "update": n.update, "restart": n.restart, "remove": n.remove,
	}
	goOn := bufio.NewReader(os.Stdin)
	for _, step := range costSteps {
		if err := steps[step](ctx); err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
		fmt.Println(step)
		if _, err := goOn.ReadString('\n'); err != nil {
			return err
		}
	}
	return n.end(ctx)
}

// volumesOfKinds are the sources of those volumes that are written into a pod.
func volumesOfKinds() map[string]v1.VolumeSource {
	reference, limit := v1.LocalObjectReference{Name: "object"}, resource.MustParse("1Mi")
	directory := v1.HostPathDirectoryOrCreate
	return map[string]v1.VolumeSource{
		"emptydir":        {EmptyDir: &v1.EmptyDirVolumeSource{}},
		"emptydir-memory": {EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &limit}},
		"configmap":       {ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: reference}},
		"secret":          {Secret: &v1.SecretVolumeSource{SecretName: "object"}},
		"downwardapi": {DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "text", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.annotations['text']"}},
		}}},
		"projected": {Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{Secret: &v1.SecretProjection{LocalObjectReference: reference}},
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: reference, Items: []v1.KeyToPath{{Key: "text", Path: "other"}}}},
		}}},
		"hostpath": {HostPath: &v1.HostPathVolumeSource{Type: &directory}},
		"nfs":      {NFS: &v1.NFSVolumeSource{Server: "192.0.2.1"}},
	}
}

// make makes the pods, and what their volumes need beforehand.
func (n *countedNode) make(ctx context.Context, count int) error {
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(n.root, "lib"), NodeName: testNode})
	if err != nil {
		return err
	}
	n.objects.set("one")
	disks := loopblock.New(loopblock.Options{Loops: n.loops, Mounter: n.mounter})
	n.plugins = volume.NewVolumePluginMgr(host)
	if err := n.plugins.InitPlugins(ctx,
		emptydir.New(emptydir.Options{Mounter: n.mounter}), hostpath.New(hostpath.Options{Mounter: n.mounter}),
		local.New(local.Options{Mounter: n.mounter}), nfs.New(nfs.Options{Mounter: likeNFS{n.mounter}}), disks,
		files.NewConfigMap(n.objects, files.Options{Mounter: n.mounter}), files.NewSecret(n.objects, files.Options{Mounter: n.mounter}),
		files.NewDownwardAPI(nil, files.Options{Mounter: n.mounter}),
		files.NewProjected(files.Getters{ConfigMaps: n.objects, Secrets: n.objects}, files.Options{Mounter: n.mounter}),
	); err != nil {
		return err
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(testNode), Labels: map[string]string{v1.LabelHostname: string(testNode)}}}
	if _, err := n.claims.Create(ctx, node); err != nil {
		return err
	}
	for i := range count {
		name := "v" + strconv.Itoa(i)
		pod, err := n.newPod(ctx, name, disks)
		if err != nil {
			return err
		}
		pod.UID = types.UID("uid-" + name)
		n.pods = append(n.pods, pod)
	}
	return nil
}

func (n *countedNode) newPod(ctx context.Context, name string, disks *loopblock.Plugin) (*v1.Pod, error) {
	switch n.kind {
	case "local":
		pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: filepath.Join(n.root, "disks", name)}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{string(testNode)}}},
			}}}},
		}}
		return podOf(name, name), errors.Join(os.MkdirAll(pv.Spec.Local.Path, 0o755), n.bind(ctx, name, pv))
	case "loopblock":
		claim := claimOfName(name)
		claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
		claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
		provisioner, err := disks.NewProvisioner(volume.VolumeOptions{PVName: "pv-" + name, PVC: claim})
		if err != nil {
			return nil, err
		}
		pv, err := provisioner.Provision(ctx, nil, nil)
		if err != nil {
			return nil, err
		}
		return podOf(name, name), n.bind(ctx, name, pv)
	}
	source, ok := volumesOfKinds()[n.kind]
	if !ok {
		return nil, fmt.Errorf("no kind of volumes is called %q", n.kind)
	}
	if source.HostPath != nil {
		source.HostPath.Path = filepath.Join(n.root, "paths", name)
	}
	if source.NFS != nil {
		source.NFS.Path = "/" + name
	}
	pod := podOf(name, "-data")
	pod.Annotations = map[string]string{"text": "one"}
	pod.Spec.Volumes[0].VolumeSource = source
	return pod, nil
}

// bind makes a claim that has the volume.
func (n *countedNode) bind(ctx context.Context, name string, pv *v1.PersistentVolume) error {
	claim := claimOfName(name)
	claim.Spec.VolumeName, claim.Status.Phase = "pv-"+name, v1.ClaimBound
	pv.Name, pv.Spec.AccessModes = "pv-"+name, claim.Spec.AccessModes
	created, err := n.claims.Create(ctx, claim)
	if err != nil {
		return err
	}
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: name, UID: created.(metav1.Object).GetUID()}
	_, err = n.claims.Create(ctx, runtime.Object(pv))
	return err
}

// start starts a manager.
func (n *countedNode) start(ctx context.Context) error {
	m, err := New(n.plugins, Options{
		RuntimeDir: filepath.Join(n.root, "run"), StateDir: filepath.Join(n.root, "state"), Resync: -1, WaitTimeout: 10 * time.Minute,
		Store: n.claims, Mounter: likeNFS{n.mounter}, DeviceUse: n.loops, Observer: &n.ended,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	n.manager, n.stop = m, func() error {
		cancel()
		return <-ended
	}
	return nil
}

func (n *countedNode) add(ctx context.Context) error {
	return errors.Join(n.ofEach(func(pod *v1.Pod) error { return n.manager.AddPod(ctx, pod) }), n.wait(ctx))
}

func (n *countedNode) wait(ctx context.Context) error {
	return n.ofEach(func(pod *v1.Pod) error { return n.manager.WaitForAttachAndMount(ctx, pod) })
}

func (n *countedNode) ofEach(do func(*v1.Pod) error) error {
	for _, pod := range n.pods {
		if err := do(pod); err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// look asks for what a runtime needs of each pod, and for what each volume holds.
func (n *countedNode) look(ctx context.Context) error {
	err := n.ofEach(func(pod *v1.Pod) error {
		_, err := n.manager.ContainerMounts(ctx, pod, "main")
		if found := n.manager.GetMountedVolumesForPod(volume.GetUniquePodName(pod)); len(found) != 1 {
			err = errors.Join(err, fmt.Errorf("it has %d volumes", len(found)))
		}
		return err
	})
	stats, statsErr := n.manager.WaitForStats(ctx, time.Hour)
	if len(stats) != len(n.pods) {
		statsErr = errors.Join(statsErr, fmt.Errorf("%d volumes were measured", len(stats)))
	}
	return errors.Join(err, statsErr)
}

// list asks for the whole node.
func (n *countedNode) list(context.Context) error {
	if found := n.manager.Status().Volumes; len(found) != len(n.pods) {
		return fmt.Errorf("%d volumes are listed", len(found))
	}
	n.manager.GetVolumesInUse()
	return nil
}

// update changes each pod, and what its volume is filled with, and waits until files are what they are to be.
func (n *countedNode) update(ctx context.Context) error {
	n.objects.set("two")
	before, _ := n.ended.now()
	for i := range n.pods {
		n.pods[i] = n.pods[i].DeepCopy()
		n.pods[i].Annotations = map[string]string{"text": "two"}
	}
	err := errors.Join(n.ofEach(func(pod *v1.Pod) error { return n.manager.UpdatePod(ctx, pod) }), n.wait(ctx))
	if err != nil || !slices.Contains([]string{"configmap", "downwardapi", "projected", "secret"}, n.kind) {
		return err
	}
	for {
		count, more := n.ended.now()
		if count >= before+len(n.pods) {
			return nil
		}
		<-more
	}
}

// restart starts another manager on the records of the first.
func (n *countedNode) restart(ctx context.Context) error {
	err := n.stop()
	if err == nil {
		err = n.start(ctx)
	}
	if err != nil {
		return err
	}
	err = n.ofEach(func(pod *v1.Pod) error { return n.manager.AddPod(ctx, pod) })
	n.manager.PodsComplete()
	return errors.Join(err, n.wait(ctx))
}

func (n *countedNode) remove(ctx context.Context) error {
	return errors.Join(n.ofEach(func(pod *v1.Pod) error { return n.manager.RemovePod(pod.UID) }), n.manager.WaitForNodeEmpty(ctx))
}

// end fails when something is left.
func (n *countedNode) end(ctx context.Context) error {
	err := n.stop()
	table, listErr := n.mounter.List(ctx)
	for _, m := range table {
		if strings.HasPrefix(m.Path, n.root+"/") {
			err = errors.Join(err, fmt.Errorf("%s is left at %s", m.Source, m.Path))
		}
	}
	return errors.Join(err, listErr)
}

// likeNFS are real mounts among which a tmpfs stands for an export, since this machine has no server.
type likeNFS struct{ *mount.Mounter }

func (l likeNFS) Mount(ctx context.Context, request mount.Request) error {
	if request.FSType == "nfs" {
		request.FSType, request.UserOptions = "tmpfs", nil
	}
	return l.Mounter.Mount(ctx, request)
}

func (l likeNFS) Lookup(ctx context.Context, path string) (mount.MountPoint, error) {
	found, err := l.Mounter.Lookup(ctx, path)
	return exported(found), err
}

func (l likeNFS) LookupID(ctx context.Context, id uint64) (mount.MountPoint, error) {
	found, err := l.Mounter.LookupID(ctx, id)
	return exported(found), err
}

func (l likeNFS) Stack(ctx context.Context, path string) ([]mount.MountPoint, error) {
	stack, err := l.Mounter.Stack(ctx, path)
	return exportedAll(stack), err
}

func (l likeNFS) List(ctx context.Context) ([]mount.MountPoint, error) {
	table, err := l.Mounter.List(ctx)
	return exportedAll(table), err
}

func exportedAll(table []mount.MountPoint) []mount.MountPoint {
	table = slices.Clone(table)
	for i := range table {
		table[i] = exported(table[i])
	}
	return table
}

// exported calls a mount that stands for an export what the kernel would.
func exported(m mount.MountPoint) mount.MountPoint {
	if strings.HasPrefix(m.Source, "192.0.2.1:") {
		m.FSType = "nfs4"
	}
	return m
}

package world

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// Process is one life of a process on a node, from its start until it is killed. Several programs may run in it, one after
// the other. It is the program's journal and block mapper, and tells the program which pods the orchestrator wants.
type Process struct {
	*configuration

	world   *World
	node    string
	plugins *volume.VolumePluginMgr

	// The world's lock guards the fields below.
	dead       bool
	ctx        context.Context //nolint:containedctx // The context of the operations that begin now.
	cancel     context.CancelFunc
	operations operations
}

var (
	_ operationexecutor.Journal     = (*Process)(nil)
	_ operationexecutor.NodeReader  = (*Process)(nil)
	_ operationexecutor.MountPoints = (*Process)(nil)
)

func (w *World) newProcess(node string) (*Process, error) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/" + node, NodeName: types.NodeName(node)})
	if err != nil {
		return nil, err
	}
	p := &Process{configuration: w.configuration, world: w, node: node, plugins: volume.NewVolumePluginMgr(host)}
	p.operations = operations{process: p, running: map[operation]int{}}
	p.renew(w.options.Context)
	return p, p.plugins.InitPlugins(w.options.Context, &plugin{process: p})
}

// renew gives the process a context for the operations that are begun from now on.
func (p *Process) renew(parent context.Context) { p.ctx, p.cancel = context.WithCancel(parent) }

// Node returns the name of the node.
func (p *Process) Node() string { return p.node }

// Boot returns how many times the node was rebooted.
func (p *Process) Boot() int {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.world.boots[p.node]
}

// Plugins returns the registry of the process.
func (p *Process) Plugins() *volume.VolumePluginMgr { return p.plugins }

// Observer returns the observer of the program's operations.
func (p *Process) Observer() operationexecutor.Observer { return &p.operations }

// Context returns the context for an operation that is begun now.
func (p *Process) Context() context.Context {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.ctx
}

// Records returns what an earlier process left on record, by the names of volume and node.
func (p *Process) Records() []Record {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	var records []Record
	for _, key := range slices.SortedFunc(maps.Keys(p.world.records[p.node]), recordKey.compare) {
		r := *p.world.records[p.node][key]
		r.Pods = maps.Clone(r.Pods)
		records = append(records, r)
	}
	return records
}

// Wanted returns the pods that the orchestrator wants on a node, by name.
func (p *Process) Wanted(node string) []Pod {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	var pods []Pod
	for _, pod := range p.config.Pods {
		if pod.Node == node && p.world.desired[pod.Name] {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Pod returns the object of a pod: another one after each update.
func (p *Process) Pod(name string) *v1.Pod {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.world.pods[name]
}

// IsMountPoint reports whether something is mounted at a path of this node.
func (p *Process) IsMountPoint(_ context.Context, path string) (bool, error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	at, ok := p.at(path)
	if !ok {
		return false, fmt.Errorf("path %q belongs to no volume", path)
	}
	if at.Pod == "" {
		return p.world.staged[at], nil
	}
	return p.world.mounted[at], nil
}

// Mount is the mount of a set-up.
type Mount struct {
	// Path is where it is.
	Path string
	// ID is one that no other mount ever gets.
	ID uint64
}

// Mounts returns the mounts of this node that set-ups have made and that are there, by path.
func (p *Process) Mounts() []Mount {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	var mounts []Mount
	for _, at := range sorted(p.world.mounted) {
		if id := p.world.mountIDs[at]; at.Node == p.node && id != 0 {
			mounts = append(mounts, Mount{Path: p.plugins.Host().GetPodVolumeDir(types.UID(at.Pod), PluginName, p.places[at.Volume]), ID: id})
		}
	}
	return mounts
}

// LastMount returns the last mount that a set-up has made at a path, also where it is gone, and false when there was none.
func (p *Process) LastMount(path string) (Mount, bool) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	at, _ := p.at(path)
	id := p.world.mountIDs[at]
	return Mount{Path: path, ID: id}, id != 0
}

// at returns what a path is for.
func (p *Process) at(path string) (At, bool) {
	host := p.plugins.Host()
	for _, v := range p.config.Volumes {
		for _, storage := range p.storagesOf(v.Name) {
			if path == host.GetPluginDir(PluginName)+"/mounts/"+storage {
				return At{Node: p.node, Volume: storage}, true
			}
		}
		for _, pod := range p.config.Pods {
			if path == host.GetPodVolumeDir(types.UID(pod.Name), PluginName, v.Name) {
				return p.world.setUpAt(At{Node: p.node, Volume: v.Name, Pod: pod.Name}), true
			}
		}
	}
	return At{}, false
}

// VolumesInUse implements operationexecutor.NodeReader.
func (p *Process) VolumesInUse(_ context.Context, node types.NodeName) ([]v1.UniqueVolumeName, error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.world.inUse[string(node)], nil
}

// VolumesAttached implements operationexecutor.NodeReader.
func (p *Process) VolumesAttached(_ context.Context, node types.NodeName) (map[v1.UniqueVolumeName]string, error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.world.reported[string(node)], nil
}

// WriteAttached makes the status of a node list what attached returns at that time. It parks before, for an operation waits
// for it.
func (p *Process) WriteAttached(node string, attached func() map[v1.UniqueVolumeName]string) error {
	if p.park("WriteStatus", "WriteStatus:"+node) == killed {
		return errKilled
	}
	p.SetAttached(node, attached())
	return nil
}

// SetAttached makes the status of a node list what is attached to it, at once.
func (p *Process) SetAttached(node string, attached map[v1.UniqueVolumeName]string) {
	p.world.change(func() {
		if !p.dead {
			p.world.reported[node] = attached
		}
	})
}

// WriteInUse has the status of this node list what it uses, which write returns when it has written that: it waits for the
// driver before. A write may fail, without a trace or after it was made.
func (p *Process) WriteInUse(write func() ([]v1.UniqueVolumeName, error)) error {
	verdict := p.park("WriteInUse", "WriteInUse:"+p.node)
	if verdict == killed {
		return errKilled
	}
	var err error
	p.world.change(func() {
		if p.dead || verdict == Final {
			return
		}
		var names []v1.UniqueVolumeName
		if names, err = write(); err == nil {
			p.world.inUse[p.node] = names
		}
	})
	if err == nil && verdict != OK {
		err = fmt.Errorf("the status of node %s: %w", p.node, errSimulated)
	}
	return err
}

// AwaitSight waits until this node may see what its status has become. False says that it has lost sight of it.
func (p *Process) AwaitSight() bool { return p.park("SeeStatus", "SeeStatus:"+p.node) == OK }

// mountBegins holds S13 and S14. The lock is held.
func (w *World) mountBegins(at At) {
	if there, taken := w.otherAt(at); taken {
		w.broken("S14", "a mount of %v begins at the path at which %v is set up", at, there)
	}
	if w.outlived[at] && w.mounted[at] {
		w.broken("S13", "a mount of %v begins on what is set up for the pod before", at)
	}
	delete(w.outlived, at)
	delete(w.dropped, at)
}

// Removed says that the program was told that a pod is removed. What is set up for it, or is about to be, is not for one that
// comes again.
func (p *Process) Removed(pod string) {
	p.world.change(func() {
		for _, storage := range p.storages {
			p.world.outlived[At{Node: p.node, Volume: storage, Pod: pod}] = true
		}
		p.world.forgetStorage(pod)
	})
}

// Forgets says that the program begins anew: it cannot know for which pod of a name what it finds was set up.
func (p *Process) Forgets() {
	p.world.change(func() {
		for at := range p.world.outlived {
			if at.Node == p.node {
				delete(p.world.outlived, at)
			}
		}
		for _, pod := range p.config.Pods {
			if pod.Node == p.node {
				p.world.forgetStorage(pod.Name)
			}
		}
	})
}

// unmounts are the operations that take a volume from a pod.
var unmounts = []operationexecutor.OperationKind{operationexecutor.OpUnmount, operationexecutor.OpUnmap}

// releases are the operations of a node on a volume that none of its pods uses.
var releases = map[operationexecutor.OperationKind]bool{
	operationexecutor.OpUnmountDevice: true, operationexecutor.OpUnmapDevice: true, operationexecutor.OpDetach: true,
}

// userOf returns a pod of the node that is wanted and uses the volume, or "". The lock is held.
func (w *World) userOf(at At) string {
	for _, pod := range w.config.Pods {
		if pod.Node == at.Node && w.desired[pod.Name] && w.uses(pod, at.Volume) {
			return pod.Name
		}
	}
	return ""
}

func (p *Process) isDead() bool {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.dead
}

// park waits for a verdict of the driver. One who was killed gets his at once.
func (p *Process) park(name, label string) string {
	if p.isDead() {
		return killed
	}
	verdict := p.world.calls.Park(simulation.Call{Name: name, Label: label, Owner: p})
	if p.isDead() {
		return killed
	}
	return verdict
}

// pluginCall is a call of the plugin that has begun and not returned.
type pluginCall struct {
	process *Process
	name    string
	at      At
	label   string
}

// deviceCalls are the calls that are about the volume as a whole.
var deviceCalls = map[string]bool{
	"Attach": true, "Detach": true, "WaitForAttach": true, "MountDevice": true, "UnmountDevice": true,
	"SetUpDevice": true, "TearDownDevice": true, "RemoveMapPath": true,
	"NodeExpand": true,
}

// call is one call of the plugin.
func (p *Process) call(ctx context.Context, name string, at At, e effect) error {
	e.call = &pluginCall{process: p, name: name, at: at, label: name + ":" + at.String()}
	if !p.world.beginCall(e.call) {
		return errKilled
	}
	defer p.world.endCall(e.call)
	verdict := OK
	if name != "WaitForAttach" || !p.config.Faults.Quiet {
		verdict = p.park(name, e.call.label)
	}
	return p.end(ctx, e, verdict)
}

// podObject is a pod of the world whose container uses all its volumes, each by the claim of its name.
func (w *World) podObject(pod Pod) *v1.Pod {
	object := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod.Name, UID: types.UID(pod.Name)}}
	c := v1.Container{Name: "main"}
	for _, name := range pod.Volumes {
		object.Spec.Volumes = append(object.Spec.Volumes, v1.Volume{Name: name, VolumeSource: w.sourceFor(pod.Name, name)})
		if w.volumes[name].Block {
			c.VolumeDevices = append(c.VolumeDevices, v1.VolumeDevice{Name: name, DevicePath: "/dev/" + name})
			continue
		}
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	object.Spec.Containers = []v1.Container{c}
	return object
}

package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/volume"
)

// DesiredStateOfWorld says which volumes should be attached to which nodes of a cluster, and for which pods. A pod
// wants its volumes on the node that it names until it is deleted from this state, whether or not an object of that node is
// there: a Node object that is deleted, or made again with another UID, ends no pod. Make it with
// [NewDesiredStateOfWorld].
type DesiredStateOfWorld struct {
	plugins *volume.VolumePluginMgr
	options Options

	mu      sync.RWMutex
	nodes   map[types.NodeName][]*wantedAttachment       // by the name of the volume
	volumes map[v1.UniqueVolumeName][]*wantedAttachment  // by the name of the node
	pods    map[volume.UniquePodName][]*wantedAttachment // by node and volume
}

// wantedAttachment is a volume that pods on a node want. PodCount counts pods.
type wantedAttachment struct {
	WantedAttachment
	pods []*v1.Pod // by their UIDs
}

func (w *wantedAttachment) key() attachmentKey { return attachmentKey{w.NodeName, w.VolumeName} }

func (w *wantedAttachment) compareNode(name types.NodeName) int { return cmp.Compare(w.NodeName, name) }

func (w *wantedAttachment) compareVolume(name v1.UniqueVolumeName) int {
	return cmp.Compare(w.VolumeName, name)
}

func (w *wantedAttachment) compare(key attachmentKey) int {
	return cmp.Or(cmp.Compare(w.NodeName, key.node), cmp.Compare(w.VolumeName, key.volume))
}

func comparePod(pod *v1.Pod, name volume.UniquePodName) int {
	return cmp.Compare(volume.GetUniquePodName(pod), name)
}

// WantedAttachment is a volume that should be attached to a node.
type WantedAttachment struct {
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// VolumeSpec is the volume, as the pod that came last says.
	VolumeSpec *volume.Spec
	// PluginName is the name of the volume's plugin.
	PluginName string
	// NodeName is the node.
	NodeName types.NodeName
	// PodCount is the number of pods on that node that want the volume.
	PodCount int
	// MultiAttachErrorReported says that an event told its pods that another node has the volume.
	MultiAttachErrorReported bool
}

// NewDesiredStateOfWorld returns a state in which nothing is wanted.
func NewDesiredStateOfWorld(plugins *volume.VolumePluginMgr, options Options) *DesiredStateOfWorld {
	return &DesiredStateOfWorld{
		plugins: plugins,
		options: options,
		nodes:   map[types.NodeName][]*wantedAttachment{},
		volumes: map[v1.UniqueVolumeName][]*wantedAttachment{},
		pods:    map[volume.UniquePodName][]*wantedAttachment{},
	}
}

// AddPod says that a pod on a node wants a volume, and returns the volume's unique name. The pod must have a UID, which is
// its unique name, and the name of its node. What the call says replaces what an earlier one for the same pod and volume
// said. A volume that needs no attaching is not kept, and has an empty name here.
//
// The error matches volume.ErrInvalid when something is missing; a volume that no plugin, or more than one, serves is an error
// of the registry's look-up. After an error nothing has changed.
func (d *DesiredStateOfWorld) AddPod(pod *v1.Pod, spec *volume.Spec) (v1.UniqueVolumeName, error) {
	if pod == nil || pod.UID == "" || pod.Spec.NodeName == "" || spec == nil {
		return "", fmt.Errorf("a pod with a UID and a node, and a volume, are required: %w", volume.ErrInvalid)
	}
	resolved, err := d.plugins.Resolve(spec)
	if err != nil {
		return "", err
	}
	podName := volume.GetUniquePodName(pod)
	name, err := resolved.UniqueVolumeName(podName)
	if err != nil {
		return "", err
	}
	key := attachmentKey{types.NodeName(pod.Spec.NodeName), name}
	if !resolved.Attachable {
		if shared, err := resolved.SharedVolumeName(); err == nil { // It may have been attachable before.
			d.DeletePodFromVolume(podName, shared, key.node)
		}
		return "", nil
	}
	d.add(key, pod, spec, resolved.PluginName)
	d.options.changed(key)
	return name, nil
}

// add adds a pod to a volume.
func (d *DesiredStateOfWorld) add(key attachmentKey, pod *v1.Pod, spec *volume.Spec, pluginName string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.find(key)
	if w == nil {
		w = &wantedAttachment{WantedAttachment: WantedAttachment{VolumeName: key.volume, NodeName: key.node}}
		d.nodes[key.node] = rows.Insert(d.nodes[key.node], w, key.volume, (*wantedAttachment).compareVolume)
		d.volumes[key.volume] = rows.Insert(d.volumes[key.volume], w, key.node, (*wantedAttachment).compareNode)
	}
	w.VolumeSpec, w.PluginName = spec, pluginName
	podName := volume.GetUniquePodName(pod)
	if i, there := slices.BinarySearchFunc(w.pods, podName, comparePod); there {
		w.pods[i] = pod
		return
	}
	w.pods = rows.Insert(w.pods, pod, podName, comparePod)
	w.PodCount = len(w.pods)
	w.MultiAttachErrorReported = false // The new pod has no event yet.
	d.pods[podName] = rows.Insert(d.pods[podName], w, key, (*wantedAttachment).compare)
}

// find returns a volume that pods on a node want, or nil.
func (d *DesiredStateOfWorld) find(key attachmentKey) *wantedAttachment {
	return rows.Find(d.volumes[key.volume], key.node, (*wantedAttachment).compareNode)
}

// DeletePod says that a pod no longer wants anything, and returns the volumes that it wanted, all of them, sorted.
func (d *DesiredStateOfWorld) DeletePod(podName volume.UniquePodName) []v1.UniqueVolumeName {
	d.mu.Lock()
	removed := make([]attachmentKey, 0, len(d.pods[podName]))
	for _, w := range d.pods[podName] {
		removed = append(removed, w.key())
	}
	for _, key := range removed {
		d.remove(key, podName)
	}
	d.mu.Unlock()
	d.options.changed(removed...)
	names := make([]v1.UniqueVolumeName, 0, len(removed))
	for _, key := range removed {
		names = append(names, key.volume)
	}
	slices.Sort(names)
	return names
}

// DeletePodFromVolume says that a pod no longer wants a volume on a node. A pod that did not want it is no error.
func (d *DesiredStateOfWorld) DeletePodFromVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	key := attachmentKey{nodeName, volumeName}
	d.mu.Lock()
	removed := d.remove(key, podName)
	d.mu.Unlock()
	if removed {
		d.options.changed(key)
	}
}

// remove takes a pod from a volume, and the volume from its node with its last pod. It reports whether it was there.
func (d *DesiredStateOfWorld) remove(key attachmentKey, podName volume.UniquePodName) bool {
	w := rows.Find(d.pods[podName], key, (*wantedAttachment).compare)
	if w == nil {
		return false
	}
	rows.SetList(d.pods, podName, rows.Remove(d.pods[podName], key, (*wantedAttachment).compare))
	w.pods = rows.Remove(w.pods, podName, comparePod)
	w.PodCount = len(w.pods)
	if w.PodCount == 0 {
		rows.SetList(d.nodes, key.node, rows.Remove(d.nodes[key.node], key.volume, (*wantedAttachment).compareVolume))
		rows.SetList(d.volumes, key.volume, rows.Remove(d.volumes[key.volume], key.node, (*wantedAttachment).compareNode))
	}
	return true
}

// MarkMultiAttachErrorReported marks the pods that want a volume on a node as informed that another node has it. Only the
// caller that gets true writes the events. It returns false if the pods were informed already, or no longer want the
// volume. A new pod removes the mark. The Changed hook is not called, because nothing else is wanted.
func (d *DesiredStateOfWorld) MarkMultiAttachErrorReported(volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.find(attachmentKey{nodeName, volumeName})
	if w == nil || w.MultiAttachErrorReported {
		return false
	}
	w.MultiAttachErrorReported = true
	return true
}

package cache

import (
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// ClusterDesiredStateOfWorld says which volumes should be attached to which nodes of a cluster, and for which pods. A pod
// wants its volumes on the node that it names until it is deleted from this state, whether or not an object of that node is
// there: a Node object that is deleted, or made again with another UID, ends no pod. Make it with
// [NewClusterDesiredStateOfWorld].
type ClusterDesiredStateOfWorld struct {
	plugins *volume.VolumePluginMgr
	options ClusterOptions

	mu          sync.RWMutex
	nodes       map[types.NodeName]*wantingNode
	attachments table[types.NodeName, v1.UniqueVolumeName, wantedAttachment]
	// pods holds the pods that want each volume on each node.
	pods table[attachmentKey, volume.UniquePodName, v1.Pod]
}

// wantingNode is a node on which pods want volumes.
type wantingNode struct {
	attachments roster[*place[types.NodeName, v1.UniqueVolumeName, wantedAttachment]]
}

// wantedAttachment is a volume that pods on a node want, as it was at one moment. It never changes; pods is the roster of
// those pods as they are now, and belongs to the lock of the state.
type wantedAttachment struct {
	ClusterVolumeToAttach
	pods *roster[*scheduledPod]
}

type scheduledPod = place[attachmentKey, volume.UniquePodName, v1.Pod]

// ClusterVolumeToAttach is a volume that should be attached to a node.
type ClusterVolumeToAttach struct {
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
	// MultiAttachErrorReported says that its pods were told that another node has the volume.
	MultiAttachErrorReported bool
}

// NewClusterDesiredStateOfWorld returns a state in which nothing is wanted.
func NewClusterDesiredStateOfWorld(plugins *volume.VolumePluginMgr, options ClusterOptions) *ClusterDesiredStateOfWorld {
	return &ClusterDesiredStateOfWorld{
		plugins:     plugins,
		options:     options,
		nodes:       map[types.NodeName]*wantingNode{},
		attachments: newTable[types.NodeName, v1.UniqueVolumeName, wantedAttachment](),
		pods:        newTable[attachmentKey, volume.UniquePodName, v1.Pod](),
	}
}

// AddPod says that a pod on a node wants a volume, and returns the volume's unique name. The pod must have a UID, which is
// its unique name, and the name of its node. What the call says replaces what an earlier one for the same pod and volume
// said. A volume that needs no attaching is not kept, and has an empty name here.
//
// The error matches volume.ErrInvalid when something is missing; a volume that no plugin, or more than one, serves is an error
// of the registry's look-up. After an error nothing has changed.
func (d *ClusterDesiredStateOfWorld) AddPod(pod *v1.Pod, spec *volume.Spec) (v1.UniqueVolumeName, error) {
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
			d.DeletePodFromVolume(podName, shared, key.owner)
		}
		return "", nil
	}
	d.add(key, podName, pod, ClusterVolumeToAttach{VolumeSpec: spec, PluginName: resolved.PluginName})
	d.options.changed(key)
	return name, nil
}

// add adds a pod to a volume; v says what is told of the volume.
func (d *ClusterDesiredStateOfWorld) add(key attachmentKey, podName volume.UniquePodName, pod *v1.Pod, v ClusterVolumeToAttach) {
	d.mu.Lock()
	defer d.mu.Unlock()
	node := d.nodes[key.owner]
	if node == nil {
		node = &wantingNode{}
		d.nodes[key.owner] = node
	}
	v.VolumeName, v.NodeName = key.partner, key.owner
	row := &wantedAttachment{ClusterVolumeToAttach: v}
	if old := d.attachments.get(key); old != nil {
		row.pods, row.MultiAttachErrorReported = old.pods, old.MultiAttachErrorReported
	} else {
		row.pods = &roster[*scheduledPod]{}
	}
	before := row.pods.count
	d.pods.put(row.pods, placeKey[attachmentKey, volume.UniquePodName]{key, podName}, pod)
	row.PodCount = row.pods.count
	if row.PodCount != before {
		row.MultiAttachErrorReported = false // The new pod was not told.
	}
	d.attachments.put(&node.attachments, key, row)
}

// DeletePod says that a pod no longer wants anything, and returns the volumes that it wanted, all of them, sorted.
func (d *ClusterDesiredStateOfWorld) DeletePod(podName volume.UniquePodName) []v1.UniqueVolumeName {
	d.mu.Lock()
	var removed []attachmentKey
	for x := range d.pods.byPartner[podName].all {
		removed = append(removed, x.key.owner)
	}
	for _, key := range removed {
		d.remove(key, podName)
	}
	d.mu.Unlock()
	sortKeys(removed)
	d.options.changed(removed...)
	names := make([]v1.UniqueVolumeName, 0, len(removed))
	for _, key := range removed {
		names = append(names, key.partner)
	}
	slices.Sort(names)
	return names
}

// DeletePodFromVolume says that a pod no longer wants a volume on a node. A pod that did not want it is no error.
func (d *ClusterDesiredStateOfWorld) DeletePodFromVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	key := attachmentKey{nodeName, volumeName}
	d.mu.Lock()
	removed := d.remove(key, podName)
	d.mu.Unlock()
	if removed {
		d.options.changed(key)
	}
}

// remove takes a pod from a volume, the volume from its node with its last pod, and the node with its last volume. It reports
// whether it was there.
func (d *ClusterDesiredStateOfWorld) remove(key attachmentKey, podName volume.UniquePodName) bool {
	old := d.attachments.get(key)
	if old == nil || d.pods.remove(old.pods, placeKey[attachmentKey, volume.UniquePodName]{key, podName}) == nil {
		return false
	}
	node := d.nodes[key.owner]
	if old.pods.count == 0 {
		d.attachments.remove(&node.attachments, key)
		if node.attachments.count == 0 {
			delete(d.nodes, key.owner)
		}
		return true
	}
	row := *old
	row.PodCount = old.pods.count
	d.attachments.put(&node.attachments, key, &row)
	return true
}

// MarkMultiAttachErrorReported says that the pods that want a volume on a node are being told that another node has it. It
// returns false when they were told already, or do not want it any more: whoever gets true tells them, and nobody else
// does. When another pod comes, they are to be told again. The Changed hook is not called: nothing else is wanted.
func (d *ClusterDesiredStateOfWorld) MarkMultiAttachErrorReported(volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := attachmentKey{nodeName, volumeName}
	old := d.attachments.get(key)
	if old == nil || old.MultiAttachErrorReported {
		return false
	}
	row := *old
	row.MultiAttachErrorReported = true
	d.attachments.put(&d.nodes[nodeName].attachments, key, &row)
	return true
}

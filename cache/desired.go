package cache

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// DesiredStateOfWorld has the volumes that the pods of this node want. Make it with [NewDesiredStateOfWorld].
type DesiredStateOfWorld struct {
	plugins *volume.VolumePluginMgr
	options Options

	mu      sync.RWMutex
	volumes map[v1.UniqueVolumeName]*wantedVolume
	pods    map[volume.UniquePodName][]*want // by the name of the volume
	// incarnations is how often a pod began to want a volume.
	incarnations uint64
}

// wantedVolume is a volume that at least one pod wants.
type wantedVolume struct {
	name   v1.UniqueVolumeName
	plugin pluginFacts
	// size is the capacity of the PersistentVolume; zero if there is none.
	size resource.Quantity
	// reportedInUse says that the node's status lists the volume as in use.
	reportedInUse bool
	pods          []*want // by the name of the pod
}

// want is one pod that wants one volume.
type want struct {
	volume *wantedVolume
	// VolumeToMount is copied for queries. want.row adds the fields that belong to the volume.
	operationexecutor.VolumeToMount
}

func (w *want) comparePod(name volume.UniquePodName) int { return cmp.Compare(w.PodName, name) }

func (w *want) compareVolume(name v1.UniqueVolumeName) int { return cmp.Compare(w.volume.name, name) }

// NewDesiredStateOfWorld returns a state in which no pod wants anything.
func NewDesiredStateOfWorld(plugins *volume.VolumePluginMgr, options Options) *DesiredStateOfWorld {
	return &DesiredStateOfWorld{
		plugins: plugins,
		options: options,
		volumes: map[v1.UniqueVolumeName]*wantedVolume{},
		pods:    map[volume.UniquePodName][]*want{},
	}
}

// AddPodOptions are a pod and a volume that it wants. Pod, VolumeSpec and OuterVolumeSpecName are required.
type AddPodOptions struct {
	// Pod is the pod; its UID is its unique name.
	Pod *v1.Pod
	// VolumeSpec is the volume, with the claim resolved.
	VolumeSpec *volume.Spec
	// Plugin is the result of volume.VolumePluginMgr.Resolve for VolumeSpec. If it is zero, AddPodToVolume calls Resolve.
	Plugin volume.Resolved
	// OuterVolumeSpecName is the name under which the pod's spec refers to the volume.
	OuterVolumeSpecName string
	// VolumeGidValue is the supplemental group of the PersistentVolume's annotation; empty if it has none.
	VolumeGidValue string
	// SELinuxLabels are the file labels of the containers that use the volume; none if SELinux is off. [Options.SELinuxMount]
	// decides whether the volume is mounted with them.
	SELinuxLabels []string
}

// AddPodToVolume records that a pod wants a volume, and returns the volume's unique name. A repeated call for the same pod and volume
// replaces the options. It adds the outer name to the earlier ones. The time of the first request stays, unless the plugin sets the
// volume up again at each update of the pod. Facts about the volume are updated for all of its pods: the abilities of its plugin, and
// the size of a PersistentVolume, which only grows.
//
// If a pod wants a volume again after [DesiredStateOfWorld.DeletePod] or [DesiredStateOfWorld.DeletePodFromVolume], its Incarnation is
// another one. A set-up for the old incarnation does not count for the new one. See [MountedVolume.IsFor].
//
// The pod's UID and the inner name become parts of paths: if one is invalid, the error matches volume.ErrInvalid. So it does if the
// outer name already refers to another volume of the pod. If no plugin serves the volume, or more than one, the error is a
// [*volume.LookupError]. If the volume would have to be mounted with two SELinux contexts, it is a [*SELinuxConflictError]. After an
// error the state is unchanged.
func (d *DesiredStateOfWorld) AddPodToVolume(options AddPodOptions) (v1.UniqueVolumeName, error) {
	if err := options.check(); err != nil {
		return "", err
	}
	resolved, err := options.resolved(d.plugins)
	if err != nil {
		return "", err
	}
	name, err := resolved.UniqueVolumeName(volume.GetUniquePodName(options.Pod))
	if err != nil {
		return "", err
	}
	facts := factsFrom(resolved)
	label, err := options.mountLabel(facts, d.options.SELinuxMount)
	if err != nil {
		return "", err
	}
	forAll, err := d.add(name, facts, options.want(label), options.OuterVolumeSpecName)
	switch {
	case err != nil:
		return "", err
	case forAll:
		d.options.changed(name)
	default:
		d.options.podChanged(volume.GetUniquePodName(options.Pod), name)
	}
	return name, nil
}

func (o *AddPodOptions) check() error {
	if o.Pod == nil || o.VolumeSpec == nil || o.OuterVolumeSpecName == "" {
		return fmt.Errorf("a pod, a volume and its name in the pod's spec are required: %w", volume.ErrInvalid)
	}
	if err := volume.CheckPathElement(string(o.Pod.UID)); err != nil {
		return fmt.Errorf("UID of pod %q: %w", o.Pod.Namespace+"/"+o.Pod.Name, err)
	}
	if err := volume.CheckPathElement(o.VolumeSpec.Name()); err != nil {
		return fmt.Errorf("volume %q of pod %q: %w", o.OuterVolumeSpecName, o.Pod.Namespace+"/"+o.Pod.Name, err)
	}
	return nil
}

// resolved returns the plugin of the volume. It calls the registry only if the caller has not.
func (o *AddPodOptions) resolved(plugins *volume.VolumePluginMgr) (volume.Resolved, error) {
	if o.Plugin.PluginName != "" {
		return o.Plugin, nil
	}
	return plugins.Resolve(o.VolumeSpec)
}

// want returns the want of the options, without the outer names.
func (o *AddPodOptions) want(label string) want {
	return want{VolumeToMount: operationexecutor.VolumeToMount{
		PodName:          volume.GetUniquePodName(o.Pod),
		Pod:              o.Pod,
		VolumeSpec:       o.VolumeSpec,
		VolumeGidValue:   o.VolumeGidValue,
		DesiredSizeLimit: sizeLimit(o.Pod, o.VolumeSpec),
		SELinuxLabel:     label,
		MountRequestTime: time.Now(),
	}}
}

// add records that a pod wants the volume with that name, under an outer name. It reports whether that changes rows of other pods.
func (d *DesiredStateOfWorld) add(name v1.UniqueVolumeName, facts pluginFacts, w want, outer string) (forAll bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOuterName(name, w.PodName, outer); err != nil {
		return false, err
	}
	v := d.volumes[name]
	if v == nil {
		v = &wantedVolume{name: name}
	} else if err := v.conflict(&w); err != nil {
		return false, err
	}
	plugin, size := v.plugin, v.size
	v.plugin = facts
	v.setLeastSize(w.VolumeSpec)
	forAll = len(v.pods) > 0 && (v.plugin != plugin || v.size.Cmp(size) != 0)
	d.volumes[name] = v
	w.volume = v
	old := rows.Find(v.pods, w.PodName, (*want).comparePod)
	if old == nil {
		d.incarnations++
		w.Incarnation, w.OuterVolumeSpecNames = d.incarnations, []string{outer}
		v.pods = rows.Insert(v.pods, &w, w.PodName, (*want).comparePod)
		d.pods[w.PodName] = rows.Insert(d.pods[w.PodName], &w, name, (*want).compareVolume)
		return forAll, nil
	}
	w.Incarnation, w.OuterVolumeSpecNames = old.Incarnation, withName(old.OuterVolumeSpecNames, outer)
	if !facts.remountable {
		w.MountRequestTime = old.MountRequestTime
	}
	*old = w
	return forAll, nil
}

// withName returns sorted names with one more name, unless they have it. It does not change its argument.
func withName(names []string, name string) []string {
	i, there := slices.BinarySearch(names, name)
	if there {
		return names
	}
	return slices.Insert(slices.Clone(names), i, name)
}

// checkOuterName refuses an outer name that refers to another volume of the pod.
func (d *DesiredStateOfWorld) checkOuterName(name v1.UniqueVolumeName, podName volume.UniquePodName, outer string) error {
	for _, w := range d.pods[podName] {
		if w.volume.name != name && slices.Contains(w.OuterVolumeSpecNames, outer) {
			return fmt.Errorf("volume %q of pod %q is %q already and cannot become %q: remove the pod first: %w",
				outer, podName, w.volume.name, name, volume.ErrInvalid)
		}
	}
	return nil
}

// setLeastSize raises the size to the size of the spec. An older spec does not shrink it.
func (v *wantedVolume) setLeastSize(spec *volume.Spec) {
	if spec.PersistentVolume == nil {
		return
	}
	if size, ok := spec.PersistentVolume.Spec.Capacity[v1.ResourceStorage]; ok && size.Cmp(v.size) > 0 {
		v.size = size.DeepCopy()
	}
}

// DeletePodFromVolume records that the pod no longer wants the volume. It does nothing if the pod did not want it.
func (d *DesiredStateOfWorld) DeletePodFromVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) {
	d.mu.Lock()
	deleted := d.remove(volumeName, podName)
	d.mu.Unlock()
	if deleted {
		d.options.podChanged(podName, volumeName)
	}
}

// DeletePod records that the pod no longer wants any volume. It returns the sorted names of the volumes that it wanted.
func (d *DesiredStateOfWorld) DeletePod(podName volume.UniquePodName) []v1.UniqueVolumeName {
	d.mu.Lock()
	var names []v1.UniqueVolumeName
	for _, w := range d.pods[podName] {
		names = append(names, w.volume.name)
	}
	for _, name := range names {
		d.remove(name, podName)
	}
	d.mu.Unlock()
	d.options.podChanged(podName, names...)
	return names
}

// remove removes the pod from the volume, and the volume with its last pod. It reports whether the pod wanted the volume.
func (d *DesiredStateOfWorld) remove(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) bool {
	w := d.find(volumeName, podName)
	if w == nil {
		return false
	}
	rows.SetList(d.pods, podName, rows.Remove(d.pods[podName], volumeName, (*want).compareVolume))
	v := w.volume
	v.pods = rows.Remove(v.pods, podName, (*want).comparePod)
	if len(v.pods) == 0 {
		delete(d.volumes, volumeName)
	}
	return true
}

// find returns the want of a pod for a volume, or nil.
func (d *DesiredStateOfWorld) find(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) *want {
	return rows.Find(d.pods[podName], volumeName, (*want).compareVolume)
}

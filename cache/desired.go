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

// DesiredStateOfWorld says which pods of this node want which volumes. Make it with [NewDesiredStateOfWorld].
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
	// size is what the PersistentVolume has been given; zero when there is none.
	size resource.Quantity
	// reportedInUse says that the node's status lists the volume as in use.
	reportedInUse bool
	pods          []*want // by the name of the pod
}

// want is one pod that wants one volume.
type want struct {
	volume *wantedVolume
	// VolumeToMount is what queries return a copy of. What belongs to the volume is filled in there: see want.row.
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

// AddPodOptions says which pod wants which volume. Pod, VolumeSpec and OuterVolumeSpecName are required.
type AddPodOptions struct {
	// Pod is the pod; its UID is its unique name.
	Pod *v1.Pod
	// VolumeSpec is the volume, with the claim resolved.
	VolumeSpec *volume.Spec
	// Plugin is what the registry said of VolumeSpec (volume.VolumePluginMgr.Resolve). The zero value: it is asked now.
	Plugin volume.Resolved
	// OuterVolumeSpecName is the name under which the pod's spec refers to the volume.
	OuterVolumeSpecName string
	// VolumeGidValue is the supplemental group that the PersistentVolume asks for; empty when it asks for none.
	VolumeGidValue string
	// SELinuxLabels are the SELinux labels, as files get them, of the containers that use the volume; none where SELinux
	// is off. Whether the volume is mounted with them is decided here: see [Options.SELinuxMount].
	SELinuxLabels []string
}

// AddPodToVolume says that a pod wants a volume, and returns the volume's unique name. What options say replaces what an
// earlier call for the same pod and volume said, outer names add up, and the time of the first request stays, unless the
// plugin wants to set the volume up again at each update of the pod. What belongs to the volume (what its plugin can do,
// the size of a PersistentVolume, which only grows) is renewed for all of its pods.
//
// A pod that wants a volume again after [DesiredStateOfWorld.DeletePod] or [DesiredStateOfWorld.DeletePodFromVolume] wants it
// anew: its Incarnation is another one, and what was set up for the old one is not for it. See [MountedVolume.IsFor].
//
// The pod's UID and the inner name become parts of paths and are checked here; the error then matches volume.ErrInvalid,
// as it does when the outer name already stands for another volume. A volume that no plugin, or more than one, serves is
// an error of the registry's look-up. A volume that would have to be mounted with two SELinux contexts is a
// [*SELinuxConflictError]. After an error nothing has changed.
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

// resolved returns what the registry says of the volume, and asks it only where the caller has not.
func (o *AddPodOptions) resolved(plugins *volume.VolumePluginMgr) (volume.Resolved, error) {
	if o.Plugin.PluginName != "" {
		return o.Plugin, nil
	}
	return plugins.Resolve(o.VolumeSpec)
}

// want returns what the options ask for, without the outer names.
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

// add makes a pod want the volume of that name, under an outer name, and reports whether that has changed what other pods want.
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

// withName returns sorted names with one more, if it is not there. What is given stays as it is.
func withName(names []string, name string) []string {
	i, there := slices.BinarySearch(names, name)
	if there {
		return names
	}
	return slices.Insert(slices.Clone(names), i, name)
}

// checkOuterName refuses an outer name that stands for another volume of the pod.
func (d *DesiredStateOfWorld) checkOuterName(name v1.UniqueVolumeName, podName volume.UniquePodName, outer string) error {
	for _, w := range d.pods[podName] {
		if w.volume.name != name && slices.Contains(w.OuterVolumeSpecNames, outer) {
			return fmt.Errorf("volume %q of pod %q is %q already and cannot become %q: remove the pod first: %w",
				outer, podName, w.volume.name, name, volume.ErrInvalid)
		}
	}
	return nil
}

// setLeastSize raises the size to that of the spec. A spec that is older than what is known does not shrink it.
func (v *wantedVolume) setLeastSize(spec *volume.Spec) {
	if spec.PersistentVolume == nil {
		return
	}
	if size, ok := spec.PersistentVolume.Spec.Capacity[v1.ResourceStorage]; ok && size.Cmp(v.size) > 0 {
		v.size = size.DeepCopy()
	}
}

// DeletePodFromVolume says that the pod no longer wants the volume. A pod that did not want it is no error.
func (d *DesiredStateOfWorld) DeletePodFromVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) {
	d.mu.Lock()
	deleted := d.remove(volumeName, podName)
	d.mu.Unlock()
	if deleted {
		d.options.podChanged(podName, volumeName)
	}
}

// DeletePod says that the pod no longer wants anything, and returns the volumes that it wanted, sorted.
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

// remove takes the pod from the volume, and the volume with its last pod. It reports whether it was there.
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

// find returns what a pod wants of a volume, or nil.
func (d *DesiredStateOfWorld) find(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) *want {
	return rows.Find(d.pods[podName], volumeName, (*want).compareVolume)
}

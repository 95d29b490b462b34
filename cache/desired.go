package cache

import (
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// DesiredStateOfWorld says which pods of this node want which volumes. Make it with [NewDesiredStateOfWorld].
type DesiredStateOfWorld struct {
	plugins *volume.VolumePluginMgr
	options Options

	mu      sync.RWMutex
	volumes map[v1.UniqueVolumeName]*wantedVolume
	pods    map[volume.UniquePodName]*wantingPod
}

// wantedVolume is a volume that at least one pod wants.
type wantedVolume struct {
	name          v1.UniqueVolumeName
	plugin        pluginFacts
	reportedInUse bool
	pods          map[volume.UniquePodName]*want
}

// want is one pod that wants one volume.
type want struct {
	options    AddPodOptions
	outerNames []string // sorted
	requested  time.Time
}

// wantingPod is what is known of one pod beside its wants.
type wantingPod struct {
	outer  map[string]v1.UniqueVolumeName
	errors []podError
}

// podError is an error of a pod and its text, which is asked once, outside of all locks.
type podError struct {
	err  error
	text string
}

// NewDesiredStateOfWorld returns a state in which no pod wants anything.
func NewDesiredStateOfWorld(plugins *volume.VolumePluginMgr, options Options) *DesiredStateOfWorld {
	return &DesiredStateOfWorld{
		plugins: plugins,
		options: options,
		volumes: map[v1.UniqueVolumeName]*wantedVolume{},
		pods:    map[volume.UniquePodName]*wantingPod{},
	}
}

// AddPodOptions says which pod wants which volume. Pod, VolumeSpec and OuterVolumeSpecName are required.
type AddPodOptions struct {
	// Pod is the pod; its UID is its unique name.
	Pod *v1.Pod
	// VolumeSpec is the volume, with the claim resolved.
	VolumeSpec *volume.Spec
	// OuterVolumeSpecName is the name under which the pod's spec refers to the volume.
	OuterVolumeSpecName string
	// VolumeGidValue is the supplemental group that the PersistentVolume asks for; empty when it asks for none.
	VolumeGidValue string
	// DesiredSizeLimit is the size limit in bytes of a volume that is local to the pod; nil means no limit.
	DesiredSizeLimit *resource.Quantity
	// SELinuxLabel is the context with which to mount; empty means none.
	SELinuxLabel string
}

// AddPodToVolume says that a pod wants a volume, and returns the volume's unique name. Pod and spec replace those of an
// earlier call for the same pod and volume, outer names add up, and the time of the first request stays, unless the plugin
// wants to set the volume up again at each update of the pod.
//
// The pod's UID and the inner name become parts of paths and are checked here; the error then matches volume.ErrInvalid,
// as it does when the outer name already stands for another volume. A volume that no plugin, or more than one, serves is
// an error of the registry's look-up. After an error nothing has changed.
func (d *DesiredStateOfWorld) AddPodToVolume(options AddPodOptions) (v1.UniqueVolumeName, error) {
	if err := options.check(); err != nil {
		return "", err
	}
	podName := volume.GetUniquePodName(options.Pod)
	name, err := d.plugins.UniqueVolumeName(podName, options.VolumeSpec)
	if err != nil {
		return "", err
	}
	facts, err := factsOf(d.plugins, options.VolumeSpec, name)
	if err != nil {
		return "", err
	}
	if err := d.add(name, facts, options); err != nil {
		return "", err
	}
	d.options.changed(name)
	return name, nil
}

func (o AddPodOptions) check() error {
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

// add changes the state.
func (d *DesiredStateOfWorld) add(name v1.UniqueVolumeName, facts pluginFacts, options AddPodOptions) error {
	podName, outer := volume.GetUniquePodName(options.Pod), options.OuterVolumeSpecName
	d.mu.Lock()
	defer d.mu.Unlock()
	pod := d.pod(podName)
	if other := pod.outer[outer]; other != "" && other != name {
		return fmt.Errorf("volume %q of pod %q is %q already and cannot become %q: remove the pod first: %w",
			outer, podName, other, name, volume.ErrInvalid)
	}
	v := d.volumes[name]
	if v == nil {
		v = &wantedVolume{name: name, pods: map[volume.UniquePodName]*want{}}
		d.volumes[name] = v
	}
	v.plugin = facts
	w := &want{options: options, outerNames: []string{outer}, requested: time.Now()}
	if old := v.pods[podName]; old != nil {
		w.outerNames = merged(old.outerNames, outer)
		if !facts.remountable {
			w.requested = old.requested
		}
	}
	v.pods[podName] = w
	pod.outer[outer] = name
	d.pods[podName] = pod
	return nil
}

// merged returns sorted names with name among them. The slice is new: the old one may have been copied out.
func merged(names []string, name string) []string {
	names = append(slices.Clone(names), name)
	slices.Sort(names)
	return slices.Compact(names)
}

// pod returns the pod's entry, or a new one that is not in the map yet.
func (d *DesiredStateOfWorld) pod(podName volume.UniquePodName) *wantingPod {
	if pod := d.pods[podName]; pod != nil {
		return pod
	}
	return &wantingPod{outer: map[string]v1.UniqueVolumeName{}}
}

// empty reports whether there is nothing to keep of the pod, which may be nil.
func (p *wantingPod) empty() bool { return p == nil || len(p.outer) == 0 && len(p.errors) == 0 }

// DeletePodFromVolume says that the pod no longer wants the volume. A pod that did not want it is no error. The errors of
// the pod stay.
func (d *DesiredStateOfWorld) DeletePodFromVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) {
	d.mu.Lock()
	deleted := d.remove(podName, volumeName)
	if pod := d.pods[podName]; deleted && pod.empty() {
		delete(d.pods, podName)
	}
	d.mu.Unlock()
	if deleted {
		d.options.changed(volumeName)
	}
}

// DeletePod says that the pod no longer wants anything, forgets its errors, and returns the volumes that it wanted, sorted.
func (d *DesiredStateOfWorld) DeletePod(podName volume.UniquePodName) []v1.UniqueVolumeName {
	d.mu.Lock()
	names := d.namesOf(podName)
	for _, name := range names {
		d.remove(podName, name)
	}
	delete(d.pods, podName)
	d.mu.Unlock()
	d.options.changed(names...)
	return names
}

// remove takes the pod from the volume, and the volume with its last pod. It reports whether it was there.
func (d *DesiredStateOfWorld) remove(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) bool {
	v := d.volumes[volumeName]
	if v == nil || v.pods[podName] == nil {
		return false
	}
	for _, outer := range v.pods[podName].outerNames {
		delete(d.pods[podName].outer, outer)
	}
	delete(v.pods, podName)
	if len(v.pods) == 0 {
		delete(d.volumes, volumeName)
	}
	return true
}

// namesOf returns the volumes of a pod, sorted.
func (d *DesiredStateOfWorld) namesOf(podName volume.UniquePodName) []v1.UniqueVolumeName {
	pod := d.pods[podName]
	if pod == nil {
		return nil
	}
	names := make([]v1.UniqueVolumeName, 0, len(pod.outer))
	for _, name := range pod.outer {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// MarkVolumesReportedInUse says which volumes the node's status lists as in use; all others are not listed.
func (d *DesiredStateOfWorld) MarkVolumesReportedInUse(reported []v1.UniqueVolumeName) {
	listed := make(map[v1.UniqueVolumeName]bool, len(reported))
	for _, name := range reported {
		listed[name] = true
	}
	d.mu.Lock()
	var changed []v1.UniqueVolumeName
	for name, v := range d.volumes {
		if v.reportedInUse != listed[name] {
			v.reportedInUse = listed[name]
			changed = append(changed, name)
		}
	}
	d.mu.Unlock()
	slices.Sort(changed)
	d.options.changed(changed...)
}

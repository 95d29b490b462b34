package cache

import (
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// DesiredStateOfWorld says which pods of this node want which volumes. Make it with [NewDesiredStateOfWorld].
type DesiredStateOfWorld struct {
	plugins *volume.VolumePluginMgr
	options Options

	mu      sync.RWMutex
	volumes map[v1.UniqueVolumeName]*wantedVolume
	// wants holds what each pod wants of each volume.
	wants       pairs[want]
	byPlugin    rosters[string, *wantedVolume]
	attachables roster[*wantedVolume]
	// reported are the volumes that the node's status lists as in use.
	reported roster[*wantedVolume]
	errors   map[volume.UniquePodName][]podError
	spares   spares[wantedVolume]
	// incarnations is how often a pod began to want a volume.
	incarnations uint64
}

// wantedVolume is a volume that at least one pod wants.
type wantedVolume struct {
	name   v1.UniqueVolumeName
	plugin pluginFacts
	// size is what the PersistentVolume has been given; zero when there is none.
	size resource.Quantity
	pods users[want]

	ofPlugin, ofAttachables, ofReported seat[*wantedVolume]
}

// want is one pod that wants one volume, as it was at one moment. It never changes.
type want struct {
	operationexecutor.VolumeToMount
	one [1]string // the outer names, where there is one
}

// NewDesiredStateOfWorld returns a state in which no pod wants anything.
func NewDesiredStateOfWorld(plugins *volume.VolumePluginMgr, options Options) *DesiredStateOfWorld {
	return &DesiredStateOfWorld{
		plugins:  plugins,
		options:  options,
		volumes:  map[v1.UniqueVolumeName]*wantedVolume{},
		wants:    pairs[want]{byPod: rosters[volume.UniquePodName, *pair[want]]{}},
		byPlugin: rosters[string, *wantedVolume]{},
		errors:   map[volume.UniquePodName][]podError{},
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
	resolved, err := d.plugins.Resolve(options.VolumeSpec)
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
	w := options.want(name, label)
	if err := d.add(w, facts, &options); err != nil {
		return "", err
	}
	d.options.changed(name)
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

// want returns what the options ask for; what belongs to the volume is filled in by it.
func (o *AddPodOptions) want(name v1.UniqueVolumeName, label string) *want {
	w := &want{VolumeToMount: operationexecutor.VolumeToMount{
		VolumeName:       name,
		PodName:          volume.GetUniquePodName(o.Pod),
		VolumeSpec:       o.VolumeSpec,
		Pod:              o.Pod,
		VolumeGidValue:   o.VolumeGidValue,
		DesiredSizeLimit: sizeLimit(o.Pod, o.VolumeSpec),
		SELinuxLabel:     label,
		MountRequestTime: time.Now(),
	}}
	w.setOuterNames(nil, o.OuterVolumeSpecName)
	return w
}

// setOuterNames makes the outer names those of old and name, sorted. What old refers to stays as it is.
func (w *want) setOuterNames(old []string, name string) {
	if len(old) == 0 || len(old) == 1 && old[0] == name {
		w.one[0] = name
		w.OuterVolumeSpecNames = w.one[:]
		return
	}
	names := append(slices.Clone(old), name)
	slices.Sort(names)
	w.OuterVolumeSpecNames = slices.Clip(slices.Compact(names))
}

// add changes the state. Who else may see w does so afterwards.
func (d *DesiredStateOfWorld) add(w *want, facts pluginFacts, o *AddPodOptions) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.volumes[w.VolumeName]
	var old *want
	if v != nil {
		old = v.pods.get(w.PodName)
	}
	if err := d.checkOuterName(w, old, o.OuterVolumeSpecName); err != nil {
		return err
	}
	if v == nil {
		v = d.newVolume(w.VolumeName)
	} else if err := v.conflict(o, w.SELinuxLabel); err != nil {
		return err
	}
	if old == nil {
		d.incarnations++
		w.Incarnation = d.incarnations
	} else {
		w.Incarnation = old.Incarnation
		w.setOuterNames(old.OuterVolumeSpecNames, o.OuterVolumeSpecName)
		if !facts.remountable {
			w.MountRequestTime = old.MountRequestTime
		}
	}
	newFacts, newSize := d.setFacts(v, facts), v.setLeastSize(o.VolumeSpec)
	if newFacts || newSize {
		v.refresh()
	}
	v.fill(w)
	d.wants.put(&v.pods, w.PodName, w)
	return nil
}

// checkOuterName refuses an outer name that stands for another volume of the pod.
func (d *DesiredStateOfWorld) checkOuterName(w, old *want, outer string) error {
	if old != nil && slices.Contains(old.OuterVolumeSpecNames, outer) {
		return nil
	}
	other := d.volumeOfOuterName(w.PodName, outer)
	if other == "" || other == w.VolumeName {
		return nil
	}
	return fmt.Errorf("volume %q of pod %q is %q already and cannot become %q: remove the pod first: %w",
		outer, w.PodName, other, w.VolumeName, volume.ErrInvalid)
}

// volumeOfOuterName returns the volume of a pod under an outer name; empty when there is none.
func (d *DesiredStateOfWorld) volumeOfOuterName(podName volume.UniquePodName, outer string) v1.UniqueVolumeName {
	for x := range d.wants.byPod[podName].all {
		if row := x.row.Load(); slices.Contains(row.OuterVolumeSpecNames, outer) {
			return row.VolumeName
		}
	}
	return ""
}

func (d *DesiredStateOfWorld) newVolume(name v1.UniqueVolumeName) *wantedVolume {
	v := d.spares.take()
	v.name = name
	v.ofPlugin.member, v.ofAttachables.member, v.ofReported.member = v, v, v
	d.volumes[name] = v
	return v
}

// setFacts replaces what is known of the volume's plugin and reports whether that changes its rows.
func (d *DesiredStateOfWorld) setFacts(v *wantedVolume, facts pluginFacts) bool {
	if v.plugin == facts {
		return false
	}
	d.byPlugin.leave(v.plugin.name, &v.ofPlugin)
	d.byPlugin.join(facts.name, &v.ofPlugin)
	d.attachables.leave(&v.ofAttachables)
	if facts.attachable {
		d.attachables.join(&v.ofAttachables)
	}
	v.plugin = facts
	return true
}

// setLeastSize raises the size to that of the spec and reports whether that changes the volume's rows. A spec that is
// older than what is known does not shrink it.
func (v *wantedVolume) setLeastSize(spec *volume.Spec) bool {
	if spec.PersistentVolume == nil {
		return false
	}
	size, ok := spec.PersistentVolume.Spec.Capacity[v1.ResourceStorage]
	if !ok || size.Cmp(v.size) <= 0 {
		return false
	}
	v.size = size.DeepCopy()
	return true
}

// fill sets what a row has from its volume.
func (v *wantedVolume) fill(w *want) {
	w.PluginName = v.plugin.name
	w.PluginIsAttachable = v.plugin.attachable
	w.PluginIsDeviceMountable = v.plugin.deviceMountable
	w.ReportedInUse = v.ofReported.taken
	w.DesiredPersistentVolumeSize = resource.Quantity{}
	if w.VolumeSpec.PersistentVolume != nil && !w.VolumeSpec.ReadOnly {
		w.DesiredPersistentVolumeSize = v.size
	}
}

// refresh replaces the rows of the volume after it has changed.
func (v *wantedVolume) refresh() {
	for x := range v.pods.all {
		old := x.row.Load()
		w := &want{VolumeToMount: old.VolumeToMount}
		if names := old.OuterVolumeSpecNames; len(names) == 1 {
			w.setOuterNames(nil, names[0]) // The old row need not be kept for its array.
		}
		v.fill(w)
		x.row.Store(w)
	}
}

// DeletePodFromVolume says that the pod no longer wants the volume. A pod that did not want it is no error. The errors of
// the pod stay.
func (d *DesiredStateOfWorld) DeletePodFromVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) {
	d.mu.Lock()
	deleted := d.remove(volumeName, podName)
	d.mu.Unlock()
	if deleted {
		d.options.changed(volumeName)
	}
}

// DeletePod says that the pod no longer wants anything, forgets its errors, and returns the volumes that it wanted, sorted.
func (d *DesiredStateOfWorld) DeletePod(podName volume.UniquePodName) []v1.UniqueVolumeName {
	d.mu.Lock()
	var names []v1.UniqueVolumeName
	for _, row := range d.wants.ofPod(podName, nil) {
		names = append(names, row.VolumeName)
		d.remove(row.VolumeName, podName)
	}
	delete(d.errors, podName)
	d.mu.Unlock()
	slices.Sort(names)
	d.options.changed(names...)
	return names
}

// remove takes the pod from the volume, and the volume with its last pod. It reports whether it was there.
func (d *DesiredStateOfWorld) remove(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) bool {
	v := d.volumes[volumeName]
	if v == nil {
		return false
	}
	x := v.pods.find(podName)
	if x == nil {
		return false
	}
	d.wants.remove(&v.pods, x)
	if v.pods.count == 0 {
		d.byPlugin.leave(v.plugin.name, &v.ofPlugin)
		d.attachables.leave(&v.ofAttachables)
		d.reported.leave(&v.ofReported)
		delete(d.volumes, volumeName)
		d.spares.give(v)
	}
	return true
}

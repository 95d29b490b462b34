package cache

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// ActualStateOfWorld says what is known of the volumes of this node. It implements both updaters of the executor, and
// operationexecutor.VolumeUsers. Make it with [NewActualStateOfWorld].
type ActualStateOfWorld struct {
	nodeName types.NodeName
	plugins  *volume.VolumePluginMgr
	options  Options

	mu      sync.RWMutex
	volumes map[v1.UniqueVolumeName]*knownVolume
	// pods holds the volumes that are, or may be, set up for each pod, by the name of the volume.
	pods      map[volume.UniquePodName][]*podMount
	settingUp setUps
}

var (
	_ operationexecutor.ActualStateOfWorldMounterUpdater  = (*ActualStateOfWorld)(nil)
	_ operationexecutor.ActualStateOfWorldAttacherUpdater = (*ActualStateOfWorld)(nil)
	_ operationexecutor.VolumeUsers                       = (*ActualStateOfWorld)(nil)
	_ operationexecutor.SetUpWatcher                      = (*ActualStateOfWorld)(nil)
	_ operationexecutor.VolumeNodes                       = (*ActualStateOfWorld)(nil)
)

// knownVolume is a volume that is, or may be, attached to this node.
type knownVolume struct {
	name   v1.UniqueVolumeName
	spec   *volume.Spec
	plugin pluginFacts
	attach AttachState

	device              operationexecutor.DeviceMountState
	deviceReconstructed bool
	devicePath          string
	deviceMountPath     string
	seLinuxMountContext string
	expansion           expansion

	// mounts are the pods for which it is, or may be, set up, by name.
	mounts []*podMount
}

// podMount is a volume that is, or may be, set up for a pod.
type podMount struct {
	volume *knownVolume
	// MountedVolume is what queries return a copy of. What belongs to the volume is filled in there: see podMount.row.
	MountedVolume
}

func (m *podMount) comparePod(name volume.UniquePodName) int { return cmp.Compare(m.PodName, name) }

func (m *podMount) compareVolume(name v1.UniqueVolumeName) int {
	return cmp.Compare(m.volume.name, name)
}

// NewActualStateOfWorld returns a state in which nothing is known of the node's volumes.
func NewActualStateOfWorld(nodeName types.NodeName, plugins *volume.VolumePluginMgr, options Options) *ActualStateOfWorld {
	return &ActualStateOfWorld{
		nodeName:  nodeName,
		plugins:   plugins,
		options:   options,
		volumes:   map[v1.UniqueVolumeName]*knownVolume{},
		pods:      map[volume.UniquePodName][]*podMount{},
		settingUp: setUps{},
	}
}

// errUnchanged ends an update that found nothing to do.
var errUnchanged = errors.New("nothing to change")

// update runs f with the volume's row, or nil when there is none, and tells of the change when f succeeds.
func (a *ActualStateOfWorld) update(name v1.UniqueVolumeName, f func(v *knownVolume) error) error {
	a.mu.Lock()
	err := f(a.volumes[name])
	a.mu.Unlock()
	switch {
	case err == nil:
		a.options.changed(name)
	case errors.Is(err, errUnchanged):
		return nil
	}
	return err
}

// updateKnown is update for a volume that must be known.
func (a *ActualStateOfWorld) updateKnown(name v1.UniqueVolumeName, f func(v *knownVolume) error) error {
	return a.update(name, func(v *knownVolume) error {
		if v == nil {
			return fmt.Errorf("volume %q: %w", name, ErrNotAttached)
		}
		return f(v)
	})
}

// newVolume adds a volume of which nothing is known but its name and its plugin.
func (a *ActualStateOfWorld) newVolume(name v1.UniqueVolumeName, facts pluginFacts) *knownVolume {
	v := &knownVolume{name: name, plugin: facts}
	a.volumes[name] = v
	return v
}

// setPaths replaces the paths of a volume by those that are not empty.
func (v *knownVolume) setPaths(devicePath, deviceMountPath string) {
	if devicePath != "" {
		v.devicePath = devicePath
	}
	if deviceMountPath != "" {
		v.deviceMountPath = deviceMountPath
	}
}

// MarkVolumeAsAttached implements the executor's attacher updater. It adds the volume, or refreshes its spec, what its
// plugin can do and, unless devicePath is empty, the path of its device. A volume that needs no attaching is marked so
// too, before it is mounted.
func (a *ActualStateOfWorld) MarkVolumeAsAttached(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName, devicePath string) error {
	return a.mark(succeeded, attachment{name: volumeName, spec: spec, node: nodeName, devicePath: devicePath})
}

// MarkVolumeAsUncertain implements the executor's attacher updater. Unlike in a kubelet, the volume is kept: it has to be
// detached before it is forgotten. It is kept also when its plugin cannot be asked any more.
func (a *ActualStateOfWorld) MarkVolumeAsUncertain(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName) error {
	return a.mark(unproven, attachment{name: volumeName, spec: spec, node: nodeName})
}

// attachment is what the attacher updater is told.
type attachment struct {
	name       v1.UniqueVolumeName
	spec       *volume.Spec
	node       types.NodeName
	devicePath string
}

func (a *ActualStateOfWorld) mark(e event, at attachment) error {
	if err := a.checkNode(at.node); err != nil {
		return err
	}
	if at.name == "" {
		name, err := a.plugins.UniqueVolumeName("", at.spec)
		if err != nil {
			return err
		}
		at.name = name
	}
	facts, err := factsOf(a.plugins, at.spec, at.name)
	if err != nil && e != unproven {
		return err
	}
	if err != nil {
		facts, _ = factsOf(a.plugins, nil, at.name) // A name of no plugin is kept as it is.
	}
	return a.update(at.name, func(v *knownVolume) error {
		if v != nil && e == unproven {
			facts = v.plugin // Doubt teaches nothing about the plugin.
		}
		// What may be attached must be detached, whatever the plugin says now.
		facts.attachable = facts.attachable || e == unproven
		return a.attach(v, e, at, facts)
	})
}

// attach moves the attachment of v, which is nil when the volume is new.
func (a *ActualStateOfWorld) attach(v *knownVolume, e event, at attachment, facts pluginFacts) error {
	if v == nil {
		v = a.newVolume(at.name, facts)
	}
	state, err := attachMoves.next(v, v.attach, e)
	if err != nil {
		return err // It was there: from nothing every event leads on.
	}
	v.attach, v.plugin = state, facts
	if at.spec != nil {
		v.spec = at.spec
	}
	v.setPaths(at.devicePath, "")
	return nil
}

// MarkVolumeAsDetached implements the executor's attacher updater. A volume that is still in use stays: see
// [ActualStateOfWorld.DeleteVolume], which says so.
func (a *ActualStateOfWorld) MarkVolumeAsDetached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	if a.checkNode(nodeName) == nil {
		_ = a.DeleteVolume(volumeName) // The port has no error; the row that stays is the answer.
	}
}

// DeleteVolume forgets a volume. It refuses, with an error that matches volume.ErrInUse, while the volume is or may be
// staged or set up for a pod. A volume that is not known is no error.
func (a *ActualStateOfWorld) DeleteVolume(volumeName v1.UniqueVolumeName) error {
	return a.update(volumeName, func(v *knownVolume) error {
		if v == nil {
			return errUnchanged
		}
		if _, err := attachMoves.next(v, v.attach, undone); err != nil {
			return err
		}
		delete(a.volumes, volumeName)
		return nil
	})
}

// RemoveVolumeFromReportAsAttached implements the executor's attacher updater. A node reports nothing to itself: it only
// checks that the node is this one.
func (a *ActualStateOfWorld) RemoveVolumeFromReportAsAttached(_ v1.UniqueVolumeName, nodeName types.NodeName) error {
	return a.checkNode(nodeName)
}

// AddVolumeToReportAsAttached implements the executor's attacher updater and does nothing on a node.
func (a *ActualStateOfWorld) AddVolumeToReportAsAttached(v1.UniqueVolumeName, types.NodeName) {}

// NodesOfVolume implements operationexecutor.VolumeNodes: this node, when the volume is, or may be, attached to it.
func (a *ActualStateOfWorld) NodesOfVolume(volumeName v1.UniqueVolumeName) []types.NodeName {
	if !a.VolumeExists(volumeName) {
		return nil
	}
	return []types.NodeName{a.nodeName}
}

// checkNode refuses what is about another node.
func (a *ActualStateOfWorld) checkNode(nodeName types.NodeName) error {
	if nodeName == "" || nodeName == a.nodeName {
		return nil
	}
	return fmt.Errorf("node %q is not this node, %q: %w", nodeName, a.nodeName, volume.ErrInvalid)
}

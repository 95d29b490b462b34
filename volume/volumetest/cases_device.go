package volumetest

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

func attachCases() []Case {
	return []Case{
		{
			Rule: "A1", Group: "attach", Name: "attach and detach",
			Sentence: "A second Attach to the same node MUST succeed. VolumesAreAttached MUST say true while the volume is attached there, and MUST NOT say true after Detach.",
			Needs:    volume.CapAttach, run: attachDetach,
		},
		{
			Rule: "A2", Group: "attach", Name: "Detach without Attach",
			Sentence: "Detach of a volume that is not attached MUST succeed.",
			Needs:    volume.CapAttach, run: detachWithoutAttach,
		},
		{
			Rule: "A3", Group: "attach", Name: "attachment after a crash",
			Sentence: "A new value of the plugin MUST know what is attached and MUST be able to detach it.",
			Needs:    volume.CapAttach, run: attachedAfterCrash,
		},
		{
			Rule: "A4", Group: "attach", Name: "WaitForAttach",
			Sentence: "WaitForAttach MUST return the absolute path of the device. The path MUST stay the same while the volume is attached, whatever else is detached.",
			Needs:    volume.CapAttach, run: waitForAttach,
		},
		{
			Rule: "A5", Group: "attach", Name: "two nodes",
			Sentence: "Attach of a volume whose access modes allow only one node MUST fail while the volume is attached to another, also by a new value of the plugin, and MUST keep that attachment.",
			Needs:    volume.CapAttach, run: attachTwoNodes,
		},
		{
			Rule: "A6", Group: "attach", Name: "cancelled",
			Sentence: "Attach and Detach whose context ends, before or during the call, MUST do no harm: the next call MUST finish the work.",
			Needs:    volume.CapAttach, run: cancelledAttach,
		},
		{
			Rule: "A7", Group: "attach", Name: "fenced",
			Sentence: "If FencesCalls is true, Attach and Detach with a FencingToken older than the storage has seen for the volume MUST fail with ErrFenced and MUST change nothing. This holds for a new value of the plugin, too. Calls with the same token, a newer one or none MUST be carried out.",
			Needs:    volume.CapAttach, run: fencedAttach,
		},
		{
			Rule: "A8", Group: "attach", Name: "ListAttachments",
			Sentence: "ListAttachments, if the plugin has it, MUST list a volume with its node after Attach and MUST NOT list it after Detach, also by a new value of the plugin.",
			Needs:    volume.CapAttach, run: listedAttachments,
		},
		{
			Rule: "A9", Group: "attach", Name: "other nodes",
			Sentence: "VolumesAreAttached MUST NOT say true for a node to which the volume is not attached. Detach from that node MUST leave the volume attached where it is.",
			Needs:    volume.CapAttach, run: otherNodes,
		},
	}
}

// attachable returns a volume that is attached, or skips.
func (e *env) attachable() *staged {
	e.t.Helper()
	s := e.attached(e.newSpec())
	if !s.attached {
		e.t.Skipf("CanAttach is false for volume %q: give a spec that is attached", s.spec.Name())
	}
	return s
}

// isAttached asks the plugin.
func (s *staged) isAttached() bool {
	s.e.t.Helper()
	return s.isAttachedTo(s.e.config.NodeName)
}

// isAttachedTo takes an error for a no where the node is not this one.
func (s *staged) isAttachedTo(node types.NodeName) bool {
	s.e.t.Helper()
	name := volume.GetUniqueVolumeName(s.e.plugin.GetPluginName(), s.volumeName)
	specs := map[v1.UniqueVolumeName]*volume.Spec{name: s.spec}
	answer, err := s.e.attacher(s.spec).VolumesAreAttached(s.e.ctx(), specs, node)
	if node == s.e.config.NodeName {
		s.e.must("VolumesAreAttached", err)
	}
	return err == nil && answer[name]
}

func attachDetach(e *env) {
	s := e.attachable()
	if !s.isAttached() {
		e.broken("VolumesAreAttached does not list the volume after Attach")
	}
	s.attach()
	s.release()
	if s.isAttached() {
		e.broken("VolumesAreAttached lists the volume after Detach")
	}
}

func detachWithoutAttach(e *env) {
	s := e.attachable()
	s.release()
	s.release()
}

func attachedAfterCrash(e *env) {
	s := e.attachable()
	e.crash()
	if !s.isAttached() {
		e.broken("a new value of the plugin does not know that the volume is attached")
	}
	s.release()
	e.crash()
	if s.isAttached() {
		e.broken("VolumesAreAttached lists the volume after Detach by a new value of the plugin")
	}
}

func waitForAttach(e *env) {
	before, s := e.attachable(), e.attachable()
	first := s.devicePath
	if !filepath.IsAbs(first) {
		e.broken("WaitForAttach returned %q, which is not an absolute path", first)
	}
	before.release()
	e.crash()
	again, err := e.attacher(s.spec).WaitForAttach(e.ctx(), s.spec, first, newPod())
	e.must("WaitForAttach", err)
	if again != first {
		e.broken("WaitForAttach returned %q and then %q", first, again)
	}
	s.release()
}

func fencedAttach(e *env) {
	if plugin, ok := e.plugin.(volume.FencingVolumePlugin); !ok || !plugin.FencesCalls() {
		e.t.Skip("the plugin does not compare fencing tokens: see volume.FencingVolumePlugin")
	}
	s := e.attachable()
	in := func(term uint64) context.Context {
		return volume.WithFencingToken(e.ctx(), volume.FencingToken{Lease: "default/volumetest", Term: term})
	}
	attach := func(term uint64) error {
		_, err := e.attacher(s.spec).Attach(in(term), s.spec, e.config.NodeName)
		return err
	}
	detach := func(term uint64) error { return e.detacher().Detach(in(term), s.volumeName, e.config.NodeName) }
	refused := func(call string, err error) {
		if !errors.Is(err, volume.ErrFenced) {
			e.broken("%s with an older fencing token: %v, which does not match ErrFenced", call, err)
		}
	}
	e.must("Attach with a token", attach(2))
	e.must("Attach with a newer token", attach(3))
	refused("Detach", detach(2))
	if !s.isAttached() {
		e.broken("Detach with an older fencing token has detached the volume")
	}
	e.must("Detach with the same token", detach(3))
	e.crash()
	refused("Attach after a crash", attach(2))
	if s.isAttached() {
		e.broken("Attach with an older fencing token has attached the volume")
	}
	e.must("Attach with a newer token", attach(4))
	s.release()
}

func listedAttachments(e *env) {
	if _, ok := e.plugin.(volume.AttachmentLister); !ok {
		e.t.Skip("the plugin does not list attachments: see volume.AttachmentLister")
	}
	s := e.attachable()
	isListed := func() bool {
		lister, ok := e.plugin.(volume.AttachmentLister)
		if !ok {
			e.broken("a new value of the plugin does not list attachments")
		}
		found, err := lister.ListAttachments(e.ctx())
		e.must("ListAttachments", err)
		return slices.Contains(found, volume.Attachment{VolumeName: s.volumeName, NodeName: e.config.NodeName})
	}
	for range 2 {
		if !isListed() {
			e.broken("ListAttachments does not list the volume with its node after Attach")
		}
		e.crash()
	}
	s.release()
	if isListed() {
		e.broken("ListAttachments lists the volume after Detach")
	}
}

func attachTwoNodes(e *env) {
	spec := copySpec(e.newSpec())
	if spec.PersistentVolume == nil {
		e.t.Skipf("volume %q has no access modes: give a PersistentVolume", spec.Name())
	}
	spec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	s := e.attached(spec)
	if !s.attached {
		e.t.Skipf("CanAttach is false for volume %q: give a spec that is attached", spec.Name())
	}
	other := e.config.NodeName + "-other"
	e.later(func() { _ = e.detacher().Detach(e.afterwards(), s.volumeName, other) })
	for range 2 {
		if _, err := e.attacher(spec).Attach(e.ctx(), spec, other); err == nil {
			e.broken("the volume is attached to %q, and Attach to %q has succeeded", e.config.NodeName, other)
		}
		if !s.isAttached() {
			e.broken("VolumesAreAttached does not list the volume after Attach to another node")
		}
		e.crash()
	}
	s.release()
}

func otherNodes(e *env) {
	s := e.attachable()
	other := e.config.NodeName + "-other"
	if s.isAttachedTo(other) {
		e.broken("the volume is attached to %q, and VolumesAreAttached says so of %q", e.config.NodeName, other)
	}
	_ = e.detacher().Detach(e.ctx(), s.volumeName, other) // It may refuse a node that cannot have the volume.
	if !s.isAttached() {
		e.broken("VolumesAreAttached does not list the volume after Detach from another node")
	}
	s.release()
}

func stageCases() []Case { return slices.Concat(stagingCases(), restageCases()) }

func stagingCases() []Case {
	return []Case{
		{
			Rule: "S1", Group: "stage", Name: "MountDevice mounts",
			Sentence: "After MountDevice the volume MUST be mounted at the path that GetDeviceMountPath returns: an absolute path below the node's root, the same for all specs of the same storage.",
			Needs:    volume.CapDeviceMount, run: mountDevice,
		},
		{
			Rule: "S2", Group: "stage", Name: "second MountDevice is a no-op",
			Sentence: "A second MountDevice, also by a new value of the plugin, MUST succeed, mount nothing on top and leave the content unchanged.",
			Needs:    volume.CapDeviceMount, run: mountDeviceTwice,
		},
		{
			Rule: "S3", Group: "stage", Name: "UnmountDevice leaves no trace",
			Sentence: "UnmountDevice MUST unmount and remove the path, and MUST succeed if nothing is there.",
			Needs:    volume.CapDeviceMount, run: unmountDevice,
		},
		{
			Rule: "S4", Group: "stage", Name: "references",
			Sentence: "GetDeviceMountRefs MUST list the paths at which pods have the volume, and no others.",
			Needs:    volume.CapDeviceMount, run: mountRefs,
		},
		{
			Rule: "S5", Group: "stage", Name: "cancelled",
			Sentence: "MountDevice and UnmountDevice whose context ends, before or during the call, MUST do no harm: the next call MUST finish the work.",
			Needs:    volume.CapDeviceMount, run: cancelledStaging,
		},
	}
}

// stageable returns a volume that is staged, or skips.
func (e *env) stageable() *staged {
	e.t.Helper()
	s := e.ready(e.newSpec())
	if s.stagePath == "" {
		e.t.Skipf("CanDeviceMount is false for volume %q: give a spec that is staged", s.spec.Name())
	}
	return s
}

func mountDevice(e *env) {
	s := e.stageable()
	if !e.beneathRoot(s.stagePath) {
		e.broken("GetDeviceMountPath %q is not beneath %s", s.stagePath, e.root)
	}
	e.expectMounted(s.stagePath)
	e.crash()
	again, err := e.deviceMounter(s.spec).GetDeviceMountPath(copySpec(s.spec))
	e.must("GetDeviceMountPath", err)
	if again != s.stagePath {
		e.broken("GetDeviceMountPath returned %q and then %q", s.stagePath, again)
	}
	s.release()
}

func mountDeviceTwice(e *env) {
	s := e.stageable()
	p := s.forPod().setUp()
	p.write("file", "content")
	s.mountDevice()
	e.expectMounted(s.stagePath)
	e.crash()
	s.mountDevice()
	e.expectMounted(s.stagePath)
	p.expect("file", "content")
	p.tearDown()
	s.release()
}

func unmountDevice(e *env) {
	s := e.stageable()
	for range 2 {
		e.must("UnmountDevice", e.deviceUnmounter().UnmountDevice(e.ctx(), s.stagePath))
		if len(e.mountsAt(s.stagePath)) > 0 || e.exists(s.stagePath) {
			e.broken("%s is left", s.stagePath)
		}
	}
	s.release()
}

func mountRefs(e *env) {
	s := e.stageable()
	p := s.forPod().setUp()
	if refs := s.refs(); !slices.Contains(refs, p.path) {
		e.broken("GetDeviceMountRefs returned %q without the pod's path %s", refs, p.path)
	}
	p.tearDown()
	for _, ref := range s.refs() {
		if strings.HasPrefix(ref, e.root+"/") {
			e.broken("GetDeviceMountRefs returned %s after the last pod", ref)
		}
	}
	s.release()
}

func (s *staged) refs() []string {
	s.e.t.Helper()
	plugin, err := s.e.registry.FindDeviceMountablePluginBySpec(s.spec)
	s.e.must("finding the plugin", err)
	refs, err := plugin.GetDeviceMountRefs(s.e.ctx(), s.stagePath)
	s.e.must("GetDeviceMountRefs", err)
	return refs
}

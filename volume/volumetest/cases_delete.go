package volumetest

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// deleteEffectCases are about what a Delete leaves.
func deleteEffectCases() []Case {
	return []Case{
		{
			Rule: "D4", Group: "delete", Name: "all others stay",
			Sentence: "Delete MUST leave every other volume and its content unchanged, also if one name begins with the other.",
			Needs:    volume.CapProvision | volume.CapDelete, run: deleteLeavesOthers,
		},
		{
			Rule: "D5", Group: "delete", Name: "delete of what is mounted",
			Sentence: "Delete of a volume that is staged, mounted for a pod or mapped on this node MUST fail with an error that matches ErrInUse, and MUST leave the volume and its content whole. This holds for a new value of the plugin, and if nothing is attached, too.",
			Needs:    volume.CapProvision | volume.CapDelete, run: deleteMounted,
		},
		{
			Rule: "D6", Group: "delete", Name: "delete on another node",
			Sentence: "Delete on a node that the node affinity of the volume does not allow MUST delete the volume, or MUST fail with an error that matches ErrNodeAffinity and leave the volume and its content whole.",
			Needs:    volume.CapProvision | volume.CapDelete, run: deleteElsewhere,
		},
	}
}

func deleteElsewhere(e *env) {
	e.requireLasting()
	e.eachMode(func(newOptions func() volume.VolumeOptions) {
		options := newOptions()
		pv := e.provision(options).DeepCopy()
		if !volume.HasNodeAffinity(pv) {
			pv.Spec.NodeAffinity = onlyNode(e.config.NodeName)
		}
		spec := volume.NewSpecFromPersistentVolume(pv, false)
		e.fill(spec, "content")
		there := e.elsewhere()
		switch err := there.delete(spec); {
		case err == nil:
			e.expectBlank(e.specOf(options))
		case errors.Is(err, volume.ErrNodeAffinity):
			e.expectContent(spec, "content")
		default:
			e.broken("Delete on a node that the volume's node affinity does not allow returned %v", err)
		}
	})
}

// elsewhere returns an agent of another node, with a root of its own.
func (e *env) elsewhere() agent {
	e.t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: newRoot(e.t, e.config), NodeName: e.config.NodeName + "-elsewhere"})
	if err != nil {
		e.t.Fatalf("making the host of another node: %v", err)
	}
	return e.newAgentOn(host)
}

// delete deletes the volume of spec. The plugin may refuse it.
func (a *agent) delete(spec *volume.Spec) error {
	a.t.Helper()
	plugin, err := a.registry.FindDeletablePluginBySpec(spec)
	a.must("finding the deleter", err)
	deleter, err := plugin.NewDeleter(spec)
	if err != nil {
		return err
	}
	return deleter.Delete(a.ctx())
}

// onlyNode returns the node affinity to the node of that name.
func onlyNode(name types.NodeName) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{string(name)}}},
	}}}}
}

func deleteLeavesOthers(e *env) {
	e.requireLasting()
	e.eachMode(func(newOptions func() volume.VolumeOptions) {
		options := newOptions()
		one, two := e.specOf(options), e.specOf(alike(newOptions(), options.PVName))
		e.fill(one, "of the first volume")
		e.fill(two, "of the second volume")
		e.must("Delete", e.deleter(one).Delete(e.ctx()))
		e.expectContent(two, "of the second volume")
		e.must("second Delete", e.deleter(one).Delete(e.ctx()))
		e.expectContent(two, "of the second volume")
	})
}

func deleteMounted(e *env) {
	e.eachMode(func(newOptions func() volume.VolumeOptions) {
		spec := e.specOf(newOptions())
		if !volume.IsBlock(spec) && e.config.PlainDirectory {
			return // The plugin cannot know who uses a path of the host at which nothing is mounted.
		}
		if volume.IsBlock(spec) && !e.hasDevice(spec) {
			return
		}
		e.use(spec, func(h holding) {
			h.put(contentMark + "content")
			for range 2 {
				if err := e.deleter(spec).Delete(e.ctx()); !errors.Is(err, volume.ErrInUse) {
					e.broken("Delete of a volume in use returned %v", err)
				}
				h.holds(contentMark + "content")
				e.crash()
			}
		})
		e.must("Delete of a volume that is not used any more", e.deleter(spec).Delete(e.ctx()))
	})
}

// hasDevice reports whether the device of a block volume is there to be seen.
func (e *env) hasDevice(spec *volume.Spec) (has bool) {
	e.t.Helper()
	e.use(spec, func(h holding) {
		m, ok := h.(*mapped)
		has = ok && m.exists()
	})
	return has
}

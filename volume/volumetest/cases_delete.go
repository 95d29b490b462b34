package volumetest

import (
	"errors"

	"github.com/volumekit/volumekit/volume"
)

// deleteBesideCases are about what a Delete leaves.
func deleteBesideCases() []Case {
	return []Case{
		{
			Rule: "D4", Group: "delete", Name: "all others stay",
			Sentence: "Delete MUST leave every other volume and its content unchanged, also if one name begins with the other.",
			Needs:    volume.CapProvision | volume.CapDelete, run: deleteLeavesOthers,
		},
		{
			Rule: "D5", Group: "delete", Name: "delete of what is mounted",
			Sentence: "Delete of a volume that is staged, mounted for a pod or mapped on this node MUST fail with an error that matches ErrInUse and MUST leave the volume and its content whole, also by a new value of the plugin, and also if nothing is attached.",
			Needs:    volume.CapProvision | volume.CapDelete, run: deleteMounted,
		},
	}
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

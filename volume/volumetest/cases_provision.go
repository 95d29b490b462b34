package volumetest

import (
	"errors"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func provisionCases() []Case { return slices.Concat(claimCases(), classCases()) }

func claimCases() []Case {
	return []Case{
		{
			Rule: "P1", Group: "provision", Name: "volume meets the claim",
			Sentence: "Provision MUST return a PersistentVolume of this plugin whose capacity is at least what the claim requests and whose access modes and volume mode are exactly the claim's.",
			Needs:    volume.CapProvision, run: provisionMeetsClaim,
		},
		{
			Rule: "P2", Group: "provision", Name: "provision twice",
			Sentence: "A second Provision of the same PVName, also by a new value of the plugin, MUST return the same volume and make no other.",
			Needs:    volume.CapProvision, run: provisionTwice,
		},
		{
			Rule: "P3", Group: "provision", Name: "unknown parameter",
			Sentence: "Provision MUST refuse, with an error, a class parameter that the plugin does not know.",
			Needs:    volume.CapProvision, run: unknownParameter,
		},
		{
			Rule: "P4", Group: "provision", Name: "clone",
			Sentence: "A volume made from VolumeOptions.Source MUST have the content of the source and MUST share nothing with it afterwards. Both MUST be usable on one node at the same time. An error that matches ErrInUse MAY demand a source that is attached nowhere.",
			Needs:    volume.CapProvision | volume.CapClone, run: cloneIsACopy,
		},
		{
			Rule: "P5", Group: "provision", Name: "unknown source of data",
			Sentence: "Provision MUST refuse, with an error, a claim with a data source that the plugin does not support.",
			Needs:    volume.CapProvision, run: unknownSource,
		},
		{
			Rule: "P6", Group: "provision", Name: "cancelled",
			Sentence: "Provision and Delete whose context ends, before or during the call, MUST do no harm: the next call MUST finish the work.",
			Needs:    volume.CapProvision | volume.CapDelete, run: cancelledProvisioning,
		},
	}
}

func deleteCases() []Case { return slices.Concat(deletionCases(), deleteEffectCases()) }

func deletionCases() []Case {
	return []Case{
		{
			Rule: "D1", Group: "delete", Name: "delete twice",
			Sentence: "Delete MUST succeed, and MUST succeed again when the volume is gone.",
			Needs:    volume.CapProvision | volume.CapDelete, run: deleteTwice,
		},
		{
			Rule: "D2", Group: "delete", Name: "delete in use",
			Sentence: "Delete of an attached volume MUST fail with an error that matches ErrInUse, also by a new value of the plugin, and MUST leave the volume and its content whole.",
			Needs:    volume.CapProvision | volume.CapDelete | volume.CapAttach, run: deleteInUse,
		},
		{
			Rule: "D3", Group: "delete", Name: "nothing is left",
			Sentence: "Delete MUST leave nothing of the volume: a volume that is provisioned under the same name MUST be empty.",
			Needs:    volume.CapProvision | volume.CapDelete, run: deleteLeavesNothing,
		},
	}
}

func provisionMeetsClaim(e *env) {
	options := e.volumeOptions()
	pv := e.provision(options)
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	if pv.Name != options.PVName {
		e.broken("the volume is called %q instead of %q", pv.Name, options.PVName)
	}
	if !e.plugin.CanSupport(spec) {
		e.broken("the plugin does not support the volume that it has made")
	}
	want, got := options.PVC.Spec.Resources.Requests[v1.ResourceStorage], pv.Spec.Capacity[v1.ResourceStorage]
	if got.Cmp(want) < 0 {
		e.broken("the volume has %s and the claim asks for %s", got.String(), want.String())
	}
	if modeOf(pv.Spec.VolumeMode) != modeOf(options.PVC.Spec.VolumeMode) {
		e.broken("the volume's mode is %s, the claim's %s", modeOf(pv.Spec.VolumeMode), modeOf(options.PVC.Spec.VolumeMode))
	}
	if want := options.PVC.Spec.AccessModes; !slices.Equal(slices.Sorted(slices.Values(pv.Spec.AccessModes)), slices.Sorted(slices.Values(want))) {
		e.broken("the volume's access modes are %v, and the claim asks for %v", pv.Spec.AccessModes, want)
	}
}

func modeOf(mode *v1.PersistentVolumeMode) v1.PersistentVolumeMode {
	if mode == nil {
		return v1.PersistentVolumeFilesystem
	}
	return *mode
}

func provisionTwice(e *env) {
	options := e.volumeOptions()
	first := e.volumeNameOf(e.provision(options))
	if again := e.volumeNameOf(e.provision(options)); again != first {
		e.broken("Provision made %q and then %q", first, again)
	}
	e.crash()
	if again := e.volumeNameOf(e.provision(options)); again != first {
		e.broken("Provision made %q and, by a new value of the plugin, %q", first, again)
	}
}

func unknownParameter(e *env) {
	options := e.volumeOptions()
	options.Parameters = maps.Clone(options.Parameters)
	if options.Parameters == nil {
		options.Parameters = map[string]string{}
	}
	options.Parameters["volumetest-no-such-parameter"] = "value"
	if pv, err := e.tryProvision(options); err == nil {
		e.tryDelete(volume.NewSpecFromPersistentVolume(pv, false))
		e.broken("a volume was made from a class with an unknown parameter")
	}
}

func deleteTwice(e *env) {
	spec := volume.NewSpecFromPersistentVolume(e.provision(e.volumeOptions()), false)
	e.must("Delete", e.deleter(spec).Delete(e.ctx()))
	e.must("second Delete", e.deleter(spec).Delete(e.ctx()))
	e.crash()
	e.must("Delete by a new value of the plugin", e.deleter(spec).Delete(e.ctx()))
}

func deleteInUse(e *env) {
	spec := volume.NewSpecFromPersistentVolume(e.provision(e.volumeOptions()), false)
	s := e.ready(spec)
	p := s.forPod().setUp()
	p.write("file", "content")
	for range 2 {
		if err := e.deleter(spec).Delete(e.ctx()); !errors.Is(err, volume.ErrInUse) {
			e.broken("Delete of a volume in use returned %v", err)
		}
		p.expect("file", "content")
		e.crash()
	}
	p.tearDown()
	s.release()
	e.must("Delete", e.deleter(spec).Delete(e.ctx()))
}

func deleteLeavesNothing(e *env) {
	options := e.volumeOptions()
	for _, life := range []string{"first", "second"} {
		spec := volume.NewSpecFromPersistentVolume(e.provision(options), false)
		s := e.ready(spec)
		p := s.forPod().setUp()
		p.expectEmptyOf("file")
		p.write("file", "of the "+life)
		p.tearDown()
		s.release()
		e.must("Delete", e.deleter(spec).Delete(e.ctx()))
	}
}

package volumetest

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

func capacityCases() []Case {
	return []Case{
		{
			Rule: "F1", Group: "capacity", Name: "what is said",
			Sentence: "GetCapacity MUST return quantities that are not negative and a minimum that is not above the maximum, also by a new value of the plugin.",
			Needs:    volume.CapCapacity, run: capacityIsPossible,
		},
		{
			Rule: "F2", Group: "capacity", Name: "unknown parameter",
			Sentence: "GetCapacity MUST refuse, with an error, a class parameter that the plugin does not know.",
			Needs:    volume.CapCapacity, run: unknownCapacityParameter,
		},
		{
			Rule: "F3", Group: "capacity", Name: "a volume takes room",
			Sentence: "While a new volume exists, the available capacity MUST be smaller by at least the size of the volume, also if nothing was written to it. Delete MUST make that capacity available again. Both hold for a new value of the plugin, too.",
			Needs:    volume.CapCapacity | volume.CapDelete, run: volumeTakesCapacity,
		},
	}
}

func (a *agent) capacity(options volume.VolumeOptions) (volume.Capacity, error) {
	a.t.Helper()
	plugin, err := a.registry.FindCapacityPluginByName(a.plugin.GetPluginName())
	a.must("finding what has the capacity", err)
	return plugin.GetCapacity(a.ctx(), volume.CapacityOptions{Parameters: maps.Clone(options.Parameters)})
}

// possible returns the capacity, and fails if there can be none such.
func (a *agent) possible(options volume.VolumeOptions) volume.Capacity {
	a.t.Helper()
	capacity, err := a.capacity(options)
	a.must("GetCapacity", err)
	for what, q := range map[string]*resource.Quantity{
		"available bytes": capacity.Available, "the largest volume": capacity.MaximumVolumeSize, "the smallest volume": capacity.MinimumVolumeSize,
	} {
		if q != nil && q.Sign() < 0 {
			a.broken("GetCapacity returned %s for %s", q, what)
		}
	}
	least, most := capacity.MinimumVolumeSize, capacity.MaximumVolumeSize
	if least != nil && most != nil && !most.IsZero() && least.Cmp(*most) > 0 {
		a.broken("GetCapacity returned %s for the smallest volume and %s for the largest", least, most)
	}
	return capacity
}

func capacityIsPossible(e *env) {
	options := e.volumeOptions()
	e.possible(options)
	e.crash()
	e.possible(options)
}

func unknownCapacityParameter(e *env) {
	options := e.volumeOptions()
	options.Parameters = maps.Clone(options.Parameters)
	if options.Parameters == nil {
		options.Parameters = map[string]string{}
	}
	options.Parameters[unknownKey] = "value"
	if _, err := e.capacity(options); err == nil {
		e.broken("GetCapacity answered for a class with an unknown parameter")
	}
}

func volumeTakesCapacity(e *env) {
	if !e.config.OwnCapacity {
		e.t.Skipf("Config.OwnCapacity is false: others may change what is available meanwhile")
	}
	options := e.volumeOptions()
	before := e.available(options)
	pv := e.provision(options)
	size := pv.Spec.Capacity[v1.ResourceStorage]
	for range 2 {
		if taken := before - e.available(options); taken < size.Value() {
			e.broken("a volume of %d bytes has taken %d off what is available", size.Value(), taken)
		}
		e.crash()
	}
	e.must("Delete", e.deleter(volume.NewSpecFromPersistentVolume(pv, false)).Delete(e.ctx()))
	for range 2 {
		if missing := before - e.available(options); missing >= size.Value() {
			e.broken("a volume of %d bytes was deleted, and %d bytes are not available again", size.Value(), missing)
		}
		e.crash()
	}
}

func (a *agent) available(options volume.VolumeOptions) int64 {
	a.t.Helper()
	available := a.possible(options).Available
	if available == nil {
		a.broken("GetCapacity does not know what is available, and Config.OwnCapacity is set")
	}
	return available.Value()
}

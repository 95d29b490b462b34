package volumetest

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// classCases are about what a new volume is, and how it stays.
func classCases() []Case {
	return []Case{
		{
			Rule: "P7", Group: "provision", Name: "content of what is provisioned again",
			Sentence: "Provision of an existing volume, also by a new value of the plugin, MUST leave its content unchanged.",
			Needs:    volume.CapProvision, run: provisionKeepsContent,
		},
		{
			Rule: "P8", Group: "provision", Name: "what the class says",
			Sentence: "Provision MUST give the PersistentVolume the reclaim policy of VolumeOptions and, where the plugin supports mount options, the mount options.",
			Needs:    volume.CapProvision, run: classIsKept,
		},
		{
			Rule: "P9", Group: "provision", Name: "claims of one name",
			Sentence: "Volumes with different PVNames MUST share nothing, also if their claims have the same name in two namespaces.",
			Needs:    volume.CapProvision, run: claimsOfOneName,
		},
		{
			Rule: "P10", Group: "provision", Name: "capacity as statfs tells",
			Sentence: "The filesystem of a new volume MUST have, by statfs, at least three quarters of the capacity of its PersistentVolume.",
			Needs:    volume.CapProvision, run: capacityIsThere,
		},
	}
}

func provisionKeepsContent(e *env) {
	e.requireLasting()
	e.eachMode(func(newOptions func() volume.VolumeOptions) {
		options := newOptions()
		e.fill(e.specOf(options), "content")
		e.expectContent(e.specOf(options), "content")
		e.crash()
		e.expectContent(e.specOf(options), "content")
	})
}

func classIsKept(e *env) {
	for _, policy := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete} {
		options := e.volumeOptions()
		options.PersistentVolumeReclaimPolicy = policy
		if e.capabilities.Has(volume.CapMountOptions) {
			options.MountOptions = append(slices.Clone(options.MountOptions), "noatime")
		}
		pv, err := e.tryProvision(options)
		e.must("Provision", err)
		e.later(func() { e.tryDelete(volume.NewSpecFromPersistentVolume(pv, false)) })
		if pv.Spec.PersistentVolumeReclaimPolicy != policy {
			e.broken("the reclaim policy is %q, that of the class %q", pv.Spec.PersistentVolumeReclaimPolicy, policy)
		}
		for _, option := range options.MountOptions {
			if !slices.Contains(volume.MountOptionFromSpec(volume.NewSpecFromPersistentVolume(pv, false)), option) {
				e.broken("the volume lacks a mount option of the class")
			}
		}
	}
}

func claimsOfOneName(e *env) {
	e.requireLasting()
	e.eachMode(func(newOptions func() volume.VolumeOptions) {
		one, two := newOptions(), newOptions()
		two.PVC = two.PVC.DeepCopy()
		two.PVC.Name, two.PVC.Namespace = one.PVC.Name, one.PVC.Namespace+"-2"
		first, second := e.specOf(one), e.specOf(two)
		e.fill(first, "of the first volume")
		e.expectBlank(second)
		e.fill(second, "of the second volume")
		e.expectContent(first, "of the first volume")
	})
}

// quarters is how much of the capacity a filesystem must have: the rest is its own.
const quarters = 3

// expectCapacity fails unless the filesystem at the pod's path is about as large as size.
func (p *podVolume) expectCapacity(size int64) {
	p.e.t.Helper()
	if has := p.capacity(); has != 0 && has < size/4*quarters {
		p.e.broken("the volume has a capacity of %d bytes, and statfs tells %d", size, has)
	}
}

// capacity is what statfs reports, 0 where it is unknown.
func (p *podVolume) capacity() int64 {
	p.e.t.Helper()
	world, ok := p.e.world.(sizer)
	if !ok {
		return 0
	}
	has, err := world.Capacity(p.path)
	if err != nil {
		p.e.t.Logf("the capacity of %s is not known: %v", p.path, err)
		return 0
	}
	return has
}

func capacityIsThere(e *env) {
	pv := e.provision(e.volumeOptions())
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	if volume.IsBlock(spec) {
		e.t.Skipf("the volume is a device, and has no filesystem")
	}
	size := pv.Spec.Capacity[v1.ResourceStorage]
	s := e.ready(spec)
	p := s.forPod().setUp()
	p.expectCapacity(size.Value())
	p.tearDown()
	s.release()
}

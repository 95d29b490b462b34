package world

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// configuration is a [Config] with the objects and names that follow from it. It does not change and needs no lock.
type configuration struct {
	config Config
	// volumes and specs are by the names of storage. storages are all of them, in order, places the volumes that they are storage of.
	volumes  map[string]Volume
	specs    map[string]*volume.Spec
	storages []string
	places   map[string]string
	// inner has the name of each volume by its unique name, and owners the pod of each volume that pods do not share.
	inner  map[v1.UniqueVolumeName]string
	owners map[v1.UniqueVolumeName]string
	// nodes are the names of all nodes, and [Controller] if there is one.
	nodes []string
}

func newConfiguration(config Config) *configuration {
	c := &configuration{
		config: config, nodes: slices.Clone(config.Nodes), volumes: map[string]Volume{}, specs: map[string]*volume.Spec{},
		inner: map[v1.UniqueVolumeName]string{}, owners: map[v1.UniqueVolumeName]string{}, places: map[string]string{},
	}
	for _, v := range config.Volumes {
		c.addStorage(v, v.Name)
	}
	for _, v := range config.Volumes {
		if v.Remade || v.Inline {
			c.addStorage(v, v.Name+other)
		}
	}
	if config.WithController {
		c.nodes = append(c.nodes, Controller)
	}
	return c
}

func (c *configuration) addStorage(v Volume, storage string) {
	place := v.Name
	v.Name = storage
	c.volumes[storage], c.specs[storage], c.places[storage] = v, specOf(v, place), place
	c.storages = append(c.storages, storage)
	c.inner[uniqueName(v, "")] = storage
	for _, p := range c.config.Pods {
		c.inner[uniqueName(v, p.Name)] = storage
		if !v.shared() {
			c.owners[uniqueName(v, p.Name)] = p.Name
		}
	}
}

// Nodes returns the names of all nodes, without the controller.
func (c *configuration) Nodes() []string { return c.config.Nodes }

// HasController reports whether a controller attaches.
func (c *configuration) HasController() bool { return c.config.WithController }

// Volumes returns the names of all volumes.
func (c *configuration) Volumes() []string {
	names := make([]string, 0, len(c.config.Volumes))
	for _, v := range c.config.Volumes {
		names = append(names, v.Name)
	}
	return names
}

// Volume returns the kind of a volume.
func (c *configuration) Volume(name string) Volume { return c.volumes[name] }

// Spec returns the spec of a volume.
func (c *configuration) Spec(name string) *volume.Spec { return c.specs[name] }

// UniqueName returns the unique name of a volume for a pod.
func (c *configuration) UniqueName(name, pod string) v1.UniqueVolumeName {
	return uniqueName(c.volumes[name], pod)
}

// Inner returns the name of a volume by its unique name.
func (c *configuration) Inner(name v1.UniqueVolumeName) string { return c.inner[name] }

func specOf(v Volume, place string) *volume.Spec {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: place},
		Spec:       v1.PersistentVolumeSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.PersistentVolumeAccessMode(v.Mode)}},
	}
	if v.Remade {
		pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: PluginName, VolumeHandle: v.Name}
	}
	if v.Block {
		block := v1.PersistentVolumeBlock
		pv.Spec.VolumeMode = &block
	}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

// uniqueName returns the same name as VolumePluginMgr.UniqueVolumeName.
func uniqueName(v Volume, pod string) v1.UniqueVolumeName {
	if v.shared() || pod == "" {
		return volume.GetUniqueVolumeName(PluginName, v.Name)
	}
	return volume.GetUniqueVolumeName(PluginName, "pods/"+pod+"/"+v.Name)
}

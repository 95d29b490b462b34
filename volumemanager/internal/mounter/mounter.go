// Package mounter asks a plugin's mounter once what it does not do I/O for, so that no query calls a plugin.
package mounter

import (
	"runtime/debug"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// Queried is a mounter of which it is known what it says.
type Queried struct {
	volume.Mounter
	path       string
	attributes volume.Attributes
	apart      []string // of a volume.ApartKeeper
}

// Make has a plugin make a mounter, and queries it. The mounter gets a copy of the spec.
func Make(plugin volume.VolumePlugin, spec *volume.Spec, pod *v1.Pod) (queried Queried, err error) {
	defer catch("NewMounter", &err)
	spec = &volume.Spec{Volume: spec.Volume.DeepCopy(), PersistentVolume: spec.PersistentVolume.DeepCopy(), ReadOnly: spec.ReadOnly}
	made, err := plugin.NewMounter(spec, pod)
	if err != nil {
		return Queried{}, err
	}
	return Query(made)
}

// Query calls the methods of a mounter that do no I/O, and returns a panic as an error.
func Query(mounter volume.Mounter) (queried Queried, err error) {
	defer catch("GetPath, GetAttributes or KeptApart", &err)
	queried = Queried{Mounter: mounter, path: mounter.GetPath(), attributes: mounter.GetAttributes()}
	if keeper, ok := mounter.(volume.ApartKeeper); ok {
		queried.apart = slices.Clone(keeper.KeptApart())
	}
	return queried, nil
}

// catch makes an error of a panic of a plugin. It is to be deferred.
func catch(call string, err *error) {
	if value := recover(); value != nil {
		*err = &volume.PanicError{Call: call, Value: value, Stack: debug.Stack()}
	}
}

// GetPath implements volume.Volume.
func (q Queried) GetPath() string { return q.path }

// GetAttributes implements volume.Mounter.
func (q Queried) GetAttributes() volume.Attributes { return q.attributes }

// KeptApart returns what a volume.ApartKeeper must be apart from; nothing for any other mounter.
func KeptApart(mounter volume.Mounter) []string {
	queried, _ := mounter.(Queried)
	return queried.apart
}

// PluginsOwn returns the mounter as the plugin made it.
func PluginsOwn(mounter volume.Mounter) volume.Mounter {
	if queried, ok := mounter.(Queried); ok {
		return queried.Mounter
	}
	return mounter
}

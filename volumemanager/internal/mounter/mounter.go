// Package mounter calls the methods of a plugin's mounter that do no I/O once, and keeps the answers: later queries call no
// plugin.
package mounter

import (
	"runtime/debug"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// Queried is a mounter with its kept answers.
type Queried struct {
	volume.Mounter
	path       string
	attributes volume.Attributes
	apart      []string // of a volume.ApartKeeper
}

// Make asks a plugin for a mounter, and queries it. The plugin gets a copy of the spec.
func Make(plugin volume.VolumePlugin, spec *volume.Spec, pod *v1.Pod) (queried Queried, err error) {
	defer catch("NewMounter", &err)
	spec = &volume.Spec{Volume: spec.Volume.DeepCopy(), PersistentVolume: spec.PersistentVolume.DeepCopy(), ReadOnly: spec.ReadOnly}
	made, err := plugin.NewMounter(spec, pod)
	if err != nil {
		return Queried{}, err
	}
	return Query(made)
}

// Query calls the methods of a mounter that do no I/O, and keeps the answers. It returns a panic as an error.
func Query(mounter volume.Mounter) (queried Queried, err error) {
	defer catch("GetPath, GetAttributes or KeptApart", &err)
	queried = Queried{Mounter: mounter, path: mounter.GetPath(), attributes: mounter.GetAttributes()}
	if keeper, ok := mounter.(volume.ApartKeeper); ok {
		queried.apart = slices.Clone(keeper.KeptApart())
	}
	return queried, nil
}

// catch turns a panic of a plugin into an error. The caller defers it.
func catch(call string, err *error) {
	if value := recover(); value != nil {
		*err = &volume.PanicError{Call: call, Value: value, Stack: debug.Stack()}
	}
}

// GetPath implements volume.Volume. It does not call the plugin.
func (q Queried) GetPath() string { return q.path }

// GetAttributes implements volume.Mounter. It does not call the plugin.
func (q Queried) GetAttributes() volume.Attributes { return q.attributes }

// KeptApart returns the paths that a volume.ApartKeeper must be kept apart from; none for any other mounter.
func KeptApart(mounter volume.Mounter) []string {
	queried, _ := mounter.(Queried)
	return queried.apart
}

// PluginsOwn returns the mounter that the plugin made.
func PluginsOwn(mounter volume.Mounter) volume.Mounter {
	if queried, ok := mounter.(Queried); ok {
		return queried.Mounter
	}
	return mounter
}

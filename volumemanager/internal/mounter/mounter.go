// Package mounter asks a plugin's mounter once what it does not do I/O for, so that no query calls a plugin.
package mounter

import (
	"runtime/debug"
	"slices"

	"github.com/volumekit/volumekit/volume"
)

// Queried is a mounter of which it is known what it says.
type Queried struct {
	volume.Mounter
	path       string
	attributes volume.Attributes
	apart      []string // of a volume.ApartKeeper
}

// Query calls the methods of a mounter that do no I/O, and returns a panic as an error.
func Query(mounter volume.Mounter) (queried Queried, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &volume.PanicError{Call: "GetPath, GetAttributes or KeptApart", Value: value, Stack: debug.Stack()}
		}
	}()
	queried = Queried{Mounter: mounter, path: mounter.GetPath(), attributes: mounter.GetAttributes()}
	if keeper, ok := mounter.(volume.ApartKeeper); ok {
		queried.apart = slices.Clone(keeper.KeptApart())
	}
	return queried, nil
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

// Package sentinel makes errors of package mount and its subpackages match the sentinel errors of package volume.
package sentinel

import (
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// sentinels are in the order in which the text of an error names them.
var sentinels = []struct{ theirs, ours error }{
	{loop.ErrInUse, volume.ErrInUse}, {mount.ErrUnsupported, volume.ErrUnsupported}, {mount.ErrInvalid, volume.ErrInvalid},
}

// OfMount makes an error of mount, loop or blockmap match the sentinels of package volume.
func OfMount(err error) error {
	for _, s := range sentinels {
		if errors.Is(err, s.theirs) && !errors.Is(err, s.ours) {
			err = fmt.Errorf("%w (%w)", err, s.ours)
		}
	}
	return err
}

// OfPath makes an error of safepath match the sentinels of package volume.
func OfPath(err error) error {
	if errors.Is(err, safepath.ErrInvalid) {
		err = fmt.Errorf("%w (%w)", err, volume.ErrInvalid)
	}
	return OfMount(err)
}

// Package sentinel makes errors of the packages of mount match the sentinels of package volume that mean the same.
package sentinel

import (
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// OfMount translates an error of mount, loop or blockmap.
func OfMount(err error) error {
	for theirs, ours := range map[error]error{
		loop.ErrInUse: volume.ErrInUse, mount.ErrUnsupported: volume.ErrUnsupported, mount.ErrInvalid: volume.ErrInvalid,
	} {
		if errors.Is(err, theirs) && !errors.Is(err, ours) {
			err = fmt.Errorf("%w (%w)", err, ours)
		}
	}
	return err
}

// OfPath translates an error of safepath.
func OfPath(err error) error {
	if errors.Is(err, safepath.ErrInvalid) {
		err = fmt.Errorf("%w (%w)", err, volume.ErrInvalid)
	}
	return OfMount(err)
}

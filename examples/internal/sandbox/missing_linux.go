package sandbox

import (
	"errors"
	"fmt"
	"os"

	"github.com/volumekit/volumekit/mount/format"
)

// Missing says what a volume in an image file needs and this machine lacks, or returns nil. fsType is the filesystem
// that must be made.
func Missing(fsType string) error {
	if InUserNamespace() {
		return errors.New("it needs root, since only root may attach loop devices and mount what is on them")
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("it needs loop devices: %w (load the module loop, or give the container its devices)", err)
	}
	if err := control.Close(); err != nil {
		return fmt.Errorf("it needs loop devices: %w", err)
	}
	if err := format.CanMake(fsType); errors.Is(err, format.ErrNoTool) {
		return fmt.Errorf("it needs mkfs.%s: %w", fsType, err)
	}
	return nil // a filesystem that no program makes is a mistake in the manifests, which were checked
}

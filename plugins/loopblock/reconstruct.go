package loopblock

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// ConstructVolumeSpec implements volume.ReconstructableVolumePlugin. The handle comes from the image behind the device
// that is mounted at mountPath; a path where no image of this plugin's directory is mounted, and a btrfs, whose device the
// kernel does not tell, are errors that match volume.ErrInvalid. Access modes, options and claim are not known any more.
func (p *Plugin) ConstructVolumeSpec(volumeName, mountPath string) (volume.ReconstructedVolume, error) {
	if err := volume.CheckPathElement(volumeName); err != nil {
		return volume.ReconstructedVolume{}, err
	}
	path, err := loop.FileMountedAt(mountPath)
	if errors.Is(err, loop.ErrNotAttached) {
		err = fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	if err != nil {
		return volume.ReconstructedVolume{}, fmt.Errorf("volume %q: %w", volumeName, classify(err))
	}
	handle, ok := strings.CutSuffix(filepath.Base(path), imageSuffix)
	if !ok || path != p.devices.images.shownPath(handle) || checkHandle(handle) != nil {
		return volume.ReconstructedVolume{}, fmt.Errorf("volume %q at %q is backed by %q, which is no image in %q: %w",
			volumeName, mountPath, path, p.devices.images.dir, volume.ErrInvalid)
	}
	return volume.ReconstructedVolume{Spec: reconstructed(volumeName, handle, v1.PersistentVolumeFilesystem)}, nil
}

// reconstructed is what is known of a volume that was found on disk.
func reconstructed(volumeName, handle string, mode v1.PersistentVolumeMode) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volumeName},
		Spec: v1.PersistentVolumeSpec{
			VolumeMode: &mode,
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: Driver, VolumeHandle: handle},
			},
		},
	}, false)
}

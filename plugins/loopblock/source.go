package loopblock

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// source is what a spec says, checked.
type source struct {
	// pv is the volume, which is not changed.
	pv *v1.PersistentVolume
	// handle names the image; one path element.
	handle string
	// fsType is the filesystem that the image must have; empty means any that is known.
	fsType string
	// block is true when pods get the image as a device, without a filesystem.
	block bool
	// readOnly is true when the volume is never written to, by no pod.
	readOnly bool
	// podReadOnly is true when this pod must not write; readOnly implies it.
	podReadOnly bool
	// options are the mount options of the volume.
	options []string
}

// supports says why a spec is none of this plugin's.
func supports(spec *volume.Spec) error {
	if spec == nil || spec.PersistentVolume == nil || spec.PersistentVolume.Spec.CSI == nil {
		return fmt.Errorf("only a PersistentVolume with a csi source names an image: %w", volume.ErrInvalid)
	}
	if !spec.HasDriver(Name) {
		return fmt.Errorf("the volume's driver is not %s: %w", Driver, volume.ErrInvalid)
	}
	return nil
}

// sourceOf reads a spec. Every error matches volume.ErrInvalid.
func sourceOf(spec *volume.Spec) (source, error) {
	if err := supports(spec); err != nil {
		return source{}, err
	}
	driver, _ := spec.Driver()
	if err := checkHandle(driver.Handle); err != nil {
		return source{}, fmt.Errorf("volumeHandle of volume %q: %w", spec.Name(), err)
	}
	if len(driver.Parameters) > 0 {
		return source{}, fmt.Errorf("volume %q has volumeAttributes, and this plugin knows none: remove them: %w",
			spec.Name(), volume.ErrInvalid)
	}
	if hasSecret(spec.PersistentVolume.Spec.CSI) {
		return source{}, fmt.Errorf("volume %q refers to a secret, and this plugin uses none: remove the reference: %w", spec.Name(), volume.ErrInvalid)
	}
	mode, err := volume.GetVolumeMode(spec)
	if err != nil {
		return source{}, err
	}
	block := mode == v1.PersistentVolumeBlock
	if block && driver.FSType != "" {
		return source{}, fmt.Errorf("volume %q has volumeMode Block and fsType %q, and a pod that writes to the device would destroy the filesystem: give one of them: %w",
			spec.Name(), driver.FSType, volume.ErrInvalid)
	}
	if driver.FSType != "" && !slices.Contains(fsTypes(), driver.FSType) {
		return source{}, fmt.Errorf("volume %q has fsType %q: use one of %v: %w", spec.Name(), driver.FSType, fsTypes(), volume.ErrInvalid)
	}
	options := volume.MountOptionFromSpec(spec)
	if err := checkOptions(options); err != nil {
		return source{}, fmt.Errorf("volume %q: %w", spec.Name(), err)
	}
	readOnly := neverWritten(spec, options)
	return source{
		pv: spec.PersistentVolume, handle: driver.Handle, fsType: driver.FSType, options: options, block: block,
		readOnly: readOnly, podReadOnly: readOnly || driver.ReadOnly,
	}, nil
}

// hasSecret reports whether the source refers to a secret for any of the calls of a CSI driver.
func hasSecret(csi *v1.CSIPersistentVolumeSource) bool {
	return csi.ControllerPublishSecretRef != nil || csi.NodeStageSecretRef != nil || csi.NodePublishSecretRef != nil ||
		csi.ControllerExpandSecretRef != nil || csi.NodeExpandSecretRef != nil
}

// checkHandle makes sure that a handle is one path element (its staging directory), and so is the longest name made of it.
func checkHandle(handle string) error {
	if err := volume.CheckPathElement(handle); err != nil {
		return err
	}
	return volume.CheckPathElement(handle + longestSuffix)
}

// filesystemOf reads the spec of a volume that is to be mounted.
func filesystemOf(spec *volume.Spec) (source, error) {
	src, err := sourceOf(spec)
	if err == nil && src.block {
		err = fmt.Errorf("volume %q has volumeMode Block: it is mapped and not mounted: %w", spec.Name(), volume.ErrUnsupported)
	}
	return src, err
}

// deviceOf reads the spec of a volume that is to be mapped.
func deviceOf(spec *volume.Spec) (source, error) {
	src, err := sourceOf(spec)
	switch {
	case err != nil:
		return source{}, err
	case !src.block:
		return source{}, fmt.Errorf("volume %q has volumeMode Filesystem: it is mounted and not mapped: %w", spec.Name(), volume.ErrUnsupported)
	case src.podReadOnly && !src.readOnly:
		return source{}, fmt.Errorf("volume %q is read-only for one pod, and a device cannot be: make the volume read-only, by its source or its access modes: %w",
			spec.Name(), volume.ErrUnsupported)
	}
	return src, nil
}

// checkOptions refuses what would not mount the volume, but do something else.
func checkOptions(options []string) error {
	if err := volume.CheckMountOptions(options); err != nil {
		return err
	}
	for _, o := range options {
		switch o {
		case "bind", "rbind", "remount", "move", "shared", "rshared", "slave", "rslave", "private", "rprivate",
			"unbindable", "runbindable":
			return fmt.Errorf("mount option %q is not one of a filesystem: remove it: %w", o, volume.ErrInvalid)
		}
	}
	return nil
}

// neverWritten reports whether no pod may write to the volume. What one pod asks for does not count.
func neverWritten(spec *volume.Spec, options []string) bool {
	return volume.IsReadOnlyMany(spec) || spec.PersistentVolume.Spec.CSI.ReadOnly || slices.Contains(options, "ro")
}

// stageOptions are those of the mount of the device.
func (s source) stageOptions() []string {
	system := s.safety()
	if s.readOnly {
		system = append(system, "ro")
	}
	return volume.JoinMountOptions(s.options, system)
}

// bindOptions are those of the bind for a pod.
func (s source) bindOptions() []string {
	options := append([]string{"bind"}, s.safety()...)
	if slices.Contains(s.options, "noexec") {
		options = append(options, "noexec")
	}
	if s.podReadOnly {
		options = append(options, "ro")
	}
	return options
}

// safety keeps setuid files and device nodes without effect, unless the volume's options allow them.
func (s source) safety() []string {
	var options []string
	if !slices.Contains(s.options, "suid") {
		options = append(options, "nosuid")
	}
	if !slices.Contains(s.options, "dev") {
		options = append(options, "nodev")
	}
	return options
}

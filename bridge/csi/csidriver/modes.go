package csidriver

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

func (p *Plugin) checkHandle(handle string) error { return p.options.checkHandle(handle) }

func (o Options) checkHandle(handle string) error {
	return csispec.CheckID("volume handle", handle, o.MaxString)
}

// use is the use of a volume: filesystem or device, access modes, mount flags.
type use struct {
	modes      []v1.PersistentVolumeAccessMode
	block      bool
	fsType     string
	mountFlags []string
	group      string // for VOLUME_MOUNT_GROUP
	readOnly   bool
}

func (s source) use() use {
	return use{modes: s.pv.Spec.AccessModes, block: s.block, fsType: s.csi.FSType, mountFlags: s.pv.Spec.MountOptions, readOnly: s.readOnly}
}

// capability returns one capability for the use of a volume, with the access mode that allows the most.
func (u use) capability(f facts) (*csi.VolumeCapability, error) {
	mode, err := u.mode(f)
	if err != nil {
		return nil, err
	}
	return u.of(mode), nil
}

// capabilities returns one capability for each access mode.
func (u use) capabilities(f facts) ([]*csi.VolumeCapability, error) {
	var all []*csi.VolumeCapability
	for _, mode := range u.modes {
		one := use{modes: []v1.PersistentVolumeAccessMode{mode}}
		converted, err := one.mode(f)
		if err != nil {
			return nil, err
		}
		all = append(all, u.of(converted))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the claim has no access mode: give it one: %w", volume.ErrInvalid)
	}
	return all, nil
}

func (u use) of(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if u.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return c
	}
	c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
		FsType: u.fsType, MountFlags: u.mountFlags, VolumeMountGroup: u.group,
	}}
	return c
}

// mode returns the access mode of CSI that allows the most within the modes of the volume. If the volume is used
// read-only, it is a reader mode.
func (u use) mode(f facts) (csi.VolumeCapability_AccessMode_Mode, error) {
	has := func(mode v1.PersistentVolumeAccessMode) bool { return slices.Contains(u.modes, mode) }
	switch {
	case has(v1.ReadWriteMany):
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil
	case has(v1.ReadOnlyMany) && (u.readOnly || len(u.modes) == 1):
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil
	case has(v1.ReadWriteOncePod):
		if !f.singleWriters() {
			return 0, fmt.Errorf("driver %q does not have access mode ReadWriteOncePod (SINGLE_NODE_MULTI_WRITER): %w", f.name, volume.ErrUnsupported)
		}
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, nil
	case has(v1.ReadWriteOnce) && f.singleWriters():
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, nil
	case has(v1.ReadWriteOnce):
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil
	}
	return 0, fmt.Errorf("access modes %v: use those that the volume can have: %w", u.modes, volume.ErrInvalid)
}

// singleWriters reports whether the driver supports the access modes that distinguish one writer on a node from
// several.
func (f facts) singleWriters() bool {
	return f.controller[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER] || f.node[csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
}

// capacityRange returns the range of a claim's request and limit.
func capacityRange(required, limit int64) *csi.CapacityRange {
	if required == 0 && limit == 0 {
		return nil
	}
	return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
}

// checkCapacity returns an error if a driver's volume is smaller than required, or larger than the limit. A size of 0
// is unknown.
func checkCapacity(made, required, limit int64) error {
	if made < 0 || made != 0 && (made < required || limit > 0 && made > limit) {
		return fmt.Errorf("it has %d bytes, of at least %d and at most %d: %w", made, required, cmp.Or(limit, made), volume.ErrInvalid)
	}
	return nil
}

package csidriver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/volume"
)

// Driver connects to one CSI driver: it has its socket and the kept connection. Make it with [New], and close it after
// the manager of its plugin has ended. Its methods may be called from several goroutines at once.
type Driver struct {
	options Options
	client  *client
}

// New returns a Driver. It does no I/O: [Plugin.Init] connects, or an earlier [Driver.Connect].
func New(options Options) (*Driver, error) {
	options, err := options.complete()
	if err != nil {
		return nil, err
	}
	if err := checkPluginName(options.Driver); err != nil {
		return nil, err
	}
	return &Driver{options: options, client: newClient(options)}, nil
}

// Connect reads the driver's facts, on a new connection if there is none. An error is transient.
func (d *Driver) Connect(ctx context.Context) error {
	_, err := d.client.session(ctx)
	return err
}

// Plugin returns a plugin that uses the driver. Several plugins may share one driver.
func (d *Driver) Plugin() *Plugin {
	name := volume.PluginNameOfDriver(d.options.Driver)
	return &Plugin{
		snapshots: snapshots{client: d.client}, options: d.options, client: d.client, name: name, attached: new(attachments),
		node: nodeService{options: d.options, client: d.client, name: name, mountPoints: mountPoints{driver: d.options.Driver, mounter: d.options.Mounter}},
	}
}

// Close ends the connection, and every call on it. Mounts stay.
func (d *Driver) Close() error { return d.client.close() }

// Plugin is a CSI driver as a plugin. Make it with [Driver.Plugin]; its methods may be called from several goroutines at once.
type Plugin struct {
	snapshots

	options  Options
	name     string
	client   *client
	host     volume.VolumeHost
	node     nodeService
	attached *attachments
}

var (
	_ volume.PersistentVolumePlugin         = (*Plugin)(nil)
	_ volume.ProvisionableVolumePlugin      = (*Plugin)(nil)
	_ volume.CloneableVolumePlugin          = (*Plugin)(nil)
	_ volume.ModifiableVolumePlugin         = (*Plugin)(nil)
	_ volume.SnapshotLister                 = (*Plugin)(nil)
	_ volume.GroupSnapshottableVolumePlugin = (*Plugin)(nil)
	_ volume.VolumePluginWithCapacity       = (*Plugin)(nil)
	_ volume.DeletableVolumePlugin          = (*Plugin)(nil)
	_ volume.AttachableVolumePlugin         = (*Plugin)(nil)
	_ volume.BulkVolumeVerifier             = (*Plugin)(nil)
	_ volume.ExpandableVolumePlugin         = (*Plugin)(nil)
	_ volume.NodeExpandableVolumePlugin     = (*Plugin)(nil)
	_ volume.VolumePluginWithAttachLimits   = (*Plugin)(nil)
	_ volume.BlockVolumePlugin              = (*Plugin)(nil)
	_ volume.RemountableVolumePlugin        = (*Plugin)(nil)
	_ volume.MountOptionVolumePlugin        = (*Plugin)(nil)
	_ volume.SELinuxVolumePlugin            = (*Plugin)(nil)
	_ volume.SpecKindDeclarer               = (*Plugin)(nil)
	_ volume.CapabilityLimiter              = (*Plugin)(nil)
)

// Identify returns the name of the driver that serves the socket of options.
func Identify(ctx context.Context, options Options) (string, error) {
	options, err := options.complete()
	if err != nil {
		return "", err
	}
	s, err := connect(ctx, options, dialSocket, new(volumeLocks))
	if err != nil {
		return "", fmt.Errorf("driver at %q: %w", options.Socket, err)
	}
	return s.facts.name, s.conn.Close()
}

// Init implements [volume.VolumePlugin]. It connects to the driver and reads the driver's facts.
func (p *Plugin) Init(ctx context.Context, host volume.VolumeHost) error {
	s, err := p.client.session(ctx)
	if err != nil {
		return err
	}
	required, exists := p.client.attachRequired()
	if !exists && !p.options.Services.Has(Controller) {
		return fmt.Errorf("driver %q: without its controller service only a CSIDriver says whether volumes must be attached: give it in Options.Object or Objects: %w",
			s.facts.name, volume.ErrInvalid)
	}
	p.client.fixAttachRequired(attachmentRule{required, exists})
	p.host = host
	if err := p.node.init(host); err != nil {
		return fmt.Errorf("driver %q: records: %w", s.facts.name, err)
	}
	return nil
}

// GetPluginName implements [volume.VolumePlugin].
func (p *Plugin) GetPluginName() string { return p.name }

// SpecKinds implements [volume.SpecKindDeclarer]: volumes of the csi source that name the driver, of PersistentVolumes and of pods.
func (p *Plugin) SpecKinds() []volume.SpecKind {
	return []volume.SpecKind{{Source: "csi", Driver: p.options.Driver}}
}

// CanSupport implements [volume.VolumePlugin].
func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	return p.isInline(spec) || p.isPersistent(spec)
}

func (p *Plugin) isPersistent(spec *volume.Spec) bool { return p.client.isPersistent(spec) }

func (c *client) isPersistent(spec *volume.Spec) bool {
	return spec != nil && spec.PersistentVolume != nil && spec.PersistentVolume.Spec.CSI != nil &&
		spec.PersistentVolume.Spec.CSI.Driver == c.options.Driver
}

// GetAccessModes implements [volume.PersistentVolumePlugin]. The driver itself refuses modes that it does not support.
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod}
}

// SupportsMountOption implements [volume.MountOptionVolumePlugin]. The driver gets the options.
func (p *Plugin) SupportsMountOption() bool { return true }

// RequiresRemount implements [volume.RemountableVolumePlugin] by requiresRepublish of the CSIDriver.
func (p *Plugin) RequiresRemount(*volume.Spec) bool {
	return isTrue(p.client.spec().RequiresRepublish)
}

// SupportsSELinuxContextMount implements [volume.SELinuxVolumePlugin] by seLinuxMount of the CSIDriver.
func (p *Plugin) SupportsSELinuxContextMount(*volume.Spec) (bool, error) {
	return isTrue(p.client.spec().SELinuxMount), nil
}

func isTrue(flag *bool) bool { return flag != nil && *flag }

// Capabilities implements [volume.CapabilityLimiter] with the driver's facts. CanAttach and CanDeviceMount decide for
// each volume whether it is attached and staged, because a driver may start again with other capabilities: a node must
// still unstage the volumes that an earlier version of its driver has staged.
func (p *Plugin) Capabilities() volume.Capabilities {
	f := p.client.known()
	c := volume.CapPersistent | volume.CapMountOptions | volume.CapRemount | volume.CapSELinux
	add := func(has bool, more volume.Capabilities) {
		if has {
			c |= more
		}
	}
	creates := f.controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME]
	add(creates, volume.CapProvision|volume.CapDelete)
	add(creates && f.controller[csi.ControllerServiceCapability_RPC_CLONE_VOLUME], volume.CapClone)
	snapshots := creates && f.controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT]
	add(snapshots, volume.CapSnapshot)
	add(snapshots && f.controller[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS], volume.CapListSnapshots)
	add(snapshots && f.group[csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT], volume.CapGroupSnapshot)
	add(p.client.attaches(), volume.CapAttach|volume.CapDeviceMount)
	add(f.controller[csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES], volume.CapBulkVerify)
	add(f.maxVolumes > 0, volume.CapAttachLimits)
	add(p.options.Services.Has(Node), volume.CapBlock|volume.CapDeviceMount)
	add(f.controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME] || f.node[csi.NodeServiceCapability_RPC_EXPAND_VOLUME], volume.CapExpand)
	add(f.node[csi.NodeServiceCapability_RPC_EXPAND_VOLUME], volume.CapNodeExpand)
	add(f.controller[csi.ControllerServiceCapability_RPC_MODIFY_VOLUME], volume.CapModify)
	add(f.controller[csi.ControllerServiceCapability_RPC_GET_CAPACITY], volume.CapCapacity)
	return c
}

// source is the source of a volume of the driver.
type source struct {
	pv  *v1.PersistentVolume
	csi *v1.CSIPersistentVolumeSource
	// readOnly is whether the volume, or this pod's reference to it, is read-only.
	readOnly bool
	block    bool
	// inline says that it is an inline volume; pv and csi are then made from it.
	inline bool
}

// errOtherPlugin says that a spec belongs to another plugin.
var errOtherPlugin = errors.New("the volume has no csi source of this driver")

// sourceOf returns the source of a PersistentVolume. If the specification does not allow its handle, the error matches
// [volume.ErrInvalid].
func (p *Plugin) sourceOf(spec *volume.Spec) (source, error) { return p.client.sourceOf(spec) }

func (c *client) sourceOf(spec *volume.Spec) (source, error) {
	if !c.isPersistent(spec) {
		return source{}, fmt.Errorf("driver %q: volume %q: %w: %w", c.options.Driver, spec.Name(), errOtherPlugin, volume.ErrInvalid)
	}
	pv := spec.PersistentVolume
	if err := c.checkMode(storagev1.VolumeLifecyclePersistent); err != nil {
		return source{}, fmt.Errorf("volume %q: %w", pv.Name, err)
	}
	if err := c.options.checkHandle(pv.Spec.CSI.VolumeHandle); err != nil {
		return source{}, fmt.Errorf("volume %q: %w", pv.Name, err)
	}
	return source{
		pv: pv, csi: pv.Spec.CSI, readOnly: spec.ReadOnly || pv.Spec.CSI.ReadOnly,
		block: pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock,
	}, nil
}

// reserved begins a volume's name if the handle alone would have another meaning.
const reserved = "="

// GetVolumeName implements [volume.VolumePlugin]. It returns the volume's handle, which is all that Detach gets. A
// handle that begins with "pods/" or "=" gets one more "=" before it.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if p.isInline(spec) {
		return spec.Name(), nil // It is an inline volume: its unique name has the pod.
	}
	src, err := p.sourceOf(spec)
	if err != nil {
		return "", err
	}
	return nameOfHandle(src.csi.VolumeHandle), nil
}

func nameOfHandle(handle string) string {
	if strings.HasPrefix(handle, "pods/") || strings.HasPrefix(handle, reserved) {
		return reserved + handle
	}
	return handle
}

func handleOfName(name string) string { return strings.TrimPrefix(name, reserved) }

package loopblock

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/volume"
)

// ParameterPreallocate is the key of a class parameter: "true" takes the whole space of a volume when it is made, so that
// writing to it cannot fail for want of space below.
const ParameterPreallocate = "preallocate"

const (
	defaultFSType = "ext4"
	noFilesystem  = "" // of a volume that is mapped
	mebibyte      = int64(1) << 20
)

// fsTypes are the filesystems that a volume can have.
func fsTypes() []string { return []string{"ext4", "xfs", "btrfs"} }

type provisioner struct {
	plugin     *Plugin
	options    volume.VolumeOptions
	request    request
	attributes attributes
}

// NewProvisioner implements volume.ProvisionableVolumePlugin. It checks options and does no I/O: a parameter that is not
// known or malformed is an error that matches volume.ErrInvalid, a claim that no image can meet (an access mode, a source of
// data that is no volume of this plugin, a limit below the least size) one that matches volume.ErrInfeasible. The image of a claim with volumeMode Block gets
// no filesystem, whatever the parameter fstype says.
func (p *Plugin) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	r, err := requestOf(options)
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", options.PVName, err)
	}
	if err := p.checkClaim(options.PVC, r); err != nil {
		return nil, fmt.Errorf("volume %q: %w", options.PVName, err)
	}
	has, err := attributesOf(options.MutableParameters)
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w: %w", options.PVName, err, volume.ErrInvalid)
	}
	return &provisioner{plugin: p, options: options, request: r, attributes: has}, nil
}

func requestOf(options volume.VolumeOptions) (request, error) {
	r := request{handle: options.PVName, fsType: defaultFSType}
	if err := checkHandle(r.handle); err != nil {
		return r, err
	}
	if err := checkOptions(volume.JoinMountOptions(options.MountOptions, nil)); err != nil {
		return r, err
	}
	for key, value := range options.Parameters {
		if err := r.parameter(key, value); err != nil {
			return r, err
		}
	}
	if volume.CheckPersistentVolumeClaimModeBlock(options.PVC) {
		r.fsType = noFilesystem
	}
	size, err := volume.RequestedBytes(options.PVC)
	if err != nil {
		return r, err
	}
	if err := r.of(options); err != nil {
		return r, err
	}
	if options.Source != nil {
		size = max(size, options.Source.Spec.Capacity.Storage().Value())
	}
	r.size, err = imageSize(max(size, mebibyte, format.SizesOf(r.fsType).Least), r.fsType)
	return r, err
}

// imageSize is the size of an image that has room for size bytes: whole mebibytes.
func imageSize(size int64, fsType string) (int64, error) {
	if limit := format.SizesOf(fsType).Most - mebibyte; size > limit {
		return 0, fmt.Errorf("%d bytes are more than the %d that the volume can have: %w", size, limit, volume.ErrInfeasible)
	}
	return (size + mebibyte - 1) / mebibyte * mebibyte, nil
}

// PublicKeys implements [volume.PublicKeyDeclarer]: nothing that this plugin is told is a secret, but mount options may be.
func (p *Plugin) PublicKeys() []string {
	return []string{volume.VolumeParameterFSType, ParameterPreallocate, ParameterDirectIO, ParameterReadAhead}
}

func (r *request) parameter(key, value string) error {
	switch key {
	case volume.VolumeParameterFSType:
		if !slices.Contains(fsTypes(), value) {
			return fmt.Errorf("class parameter %s is %q: use one of %v: %w", key, value, fsTypes(), volume.ErrInvalid)
		}
		r.fsType = value
		return nil
	case ParameterPreallocate:
		yes, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("class parameter %s is %q: use true or false: %w", key, value, volume.ErrInvalid)
		}
		r.preallocate = yes
		return nil
	}
	return fmt.Errorf("class parameter %q is not known: use %s and %s: %w",
		key, volume.VolumeParameterFSType, ParameterPreallocate, volume.ErrInvalid)
}

// checkClaim refuses what can never be met.
func (p *Plugin) checkClaim(claim *v1.PersistentVolumeClaim, r request) error {
	spec := claim.Spec
	limit, limited := spec.Resources.Limits[v1.ResourceStorage]
	switch {
	case r.origin.isNone() && (spec.DataSource != nil || spec.DataSourceRef != nil):
		return fmt.Errorf("the claim's data source is neither a claim nor a snapshot, and this plugin copies nothing else: %w", volume.ErrInfeasible)
	case !volume.ContainsAllAccessModes(p.GetAccessModes(), spec.AccessModes):
		return fmt.Errorf("access modes %v: use those of %v: %w", spec.AccessModes, p.GetAccessModes(), volume.ErrInfeasible)
	case limited && limit.CmpInt64(r.size) < 0:
		return fmt.Errorf("the claim allows %s, and the least that can be made of it is %d bytes: %w",
			limit.String(), r.size, volume.ErrInfeasible)
	}
	return nil
}

// Provision implements volume.Provisioner. The image is made on this node, so that another selected node and topologies,
// which the plugin knows nothing of, are errors that match volume.ErrInfeasible. An image that another process is making
// is an error that matches volume.ErrTransient. A copy of a volume that cannot be copied while it is in use is one that matches
// volume.ErrInUse.
func (p *provisioner) Provision(
	ctx context.Context, selectedNode *v1.Node, allowedTopologies []v1.TopologySelectorTerm,
) (*v1.PersistentVolume, error) {
	if selectedNode != nil && selectedNode.Name != string(p.plugin.host.GetNodeName()) {
		return nil, fmt.Errorf("an image of node %q is of no use to node %q: %w",
			p.plugin.host.GetNodeName(), selectedNode.Name, volume.ErrInfeasible)
	}
	if len(allowedTopologies) > 0 {
		return nil, fmt.Errorf("this plugin knows no topologies: remove allowedTopologies from the class: %w", volume.ErrInfeasible)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("volume %q was not begun: %w", p.request.handle, context.Cause(ctx))
	}
	dir, err := image.MakeDir(p.plugin.devices.images.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	r, write := p.request, formatNew
	switch {
	case r.origin.snapshot != "":
		write = p.plugin.snapshots.restore
		r, err = p.plugin.snapshots.resolve(ctx, dir, r)
	case !r.origin.isNone():
		write = p.plugin.snapshots.clone
	}
	var size int64
	if err == nil {
		size, err = ensure(ctx, dir, r, write)
	}
	if err != nil {
		return nil, fmt.Errorf("making the image of volume %q: %w", p.request.handle, classify(err))
	}
	if err := p.setAttributes(ctx); err != nil {
		return nil, fmt.Errorf("attributes of volume %q: %w", p.request.handle, err)
	}
	return p.persistentVolume(r.fsType, size), nil
}

// setAttributes gives a volume that was made, and that no pod can have yet, its attributes, and no others.
func (p *provisioner) setAttributes(ctx context.Context) error {
	done, err := p.plugin.devices.attributeLocks.lock(ctx, p.request.handle)
	if err != nil {
		return err
	}
	defer done()
	_, err = withImage(ctx, p.plugin.devices.images, p.request.handle, func(file *os.File) (struct{}, error) {
		if err := p.attributes.checkFile(file); err != nil {
			return struct{}{}, volume.Uncertain(err) // The image is there.
		}
		return struct{}{}, volume.Uncertain(p.plugin.devices.images.setAttributes(p.request.handle, p.attributes))
	})
	return err
}

func (p *provisioner) persistentVolume(fsType string, size int64) *v1.PersistentVolume {
	mode := v1.PersistentVolumeFilesystem
	if fsType == noFilesystem {
		mode = v1.PersistentVolumeBlock
	}
	modes := append([]v1.PersistentVolumeAccessMode(nil), p.options.PVC.Spec.AccessModes...)
	if len(modes) == 0 {
		modes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	}
	return &v1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: p.options.PVName},
		Spec: v1.PersistentVolumeSpec{
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)},
			AccessModes:                   modes,
			PersistentVolumeReclaimPolicy: p.options.PersistentVolumeReclaimPolicy,
			MountOptions:                  volume.JoinMountOptions(p.options.MountOptions, nil),
			VolumeMode:                    &mode,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: Driver, VolumeHandle: p.request.handle, FSType: fsType,
			}},
		},
	}
}

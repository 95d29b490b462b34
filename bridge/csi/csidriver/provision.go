package csidriver

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

// provisioner creates one volume.
type provisioner struct {
	plugin  *Plugin
	options volume.VolumeOptions
	own     map[string]string // the driver's parameters
	fsType  string
	refs    classSecrets
}

// NewProvisioner implements [volume.ProvisionableVolumePlugin]. Class parameters that begin with csi.storage.k8s.io/
// are Kubernetes' own: the filesystem, and references to secrets. The driver gets all others.
func (p *Plugin) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	if options.PVC == nil {
		return nil, fmt.Errorf("driver %q: provisioning %q without a claim: %w", p.options.Driver, options.PVName, volume.ErrInvalid)
	}
	if err := csispec.CheckName(options.PVName); err != nil {
		return nil, err
	}
	own, fsType, refs, err := splitParameters(options)
	if err != nil {
		return nil, fmt.Errorf("driver %q: %w", p.options.Driver, err)
	}
	return &provisioner{plugin: p, options: options, own: own, fsType: fsType, refs: refs}, nil
}

// CanClone implements [volume.CloneableVolumePlugin].
func (p *Plugin) CanClone(source *volume.Spec) (bool, error) {
	_, err := p.sourceOf(source)
	return err == nil, err
}

// Provision implements [volume.Provisioner].
func (v *provisioner) Provision(
	ctx context.Context, selectedNode *v1.Node, allowedTopologies []v1.TopologySelectorTerm,
) (*v1.PersistentVolume, error) {
	s, err := v.plugin.client.session(ctx)
	if err != nil {
		return nil, err
	}
	request, err := v.request(s.facts)
	if err != nil {
		return nil, fmt.Errorf("driver %q: volume %q: %w", s.facts.name, v.options.PVName, err)
	}
	if request.AccessibilityRequirements, err = v.plugin.topologyRequirement(ctx, s.facts, selectedNode, allowedTopologies); err != nil {
		return nil, err
	}
	if request.Secrets, err = v.plugin.options.secret(ctx, v.refs[provisionerSecret]); err != nil {
		return nil, err
	}
	answer, err := call(ctx, s, "CreateVolume", csi.NewControllerClient(s.conn).CreateVolume, request)
	if err != nil {
		return nil, explainSource(request, err)
	}
	if err := v.check(request, answer.GetVolume()); err != nil {
		return nil, s.refuse("CreateVolume", err)
	}
	return v.persistentVolume(request, answer.GetVolume()), nil
}

// explainSource adds to an error of CreateVolume what it means for the source of a copy. NotFound also proves that no earlier attempt
// created the volume: a driver must return an existing volume to an equal request, so it looks for that before the source.
func explainSource(request *csi.CreateVolumeRequest, err error) error {
	switch {
	case request.GetVolumeContentSource() == nil:
		return err
	case isCode(err, codes.FailedPrecondition): // The specification has no code for a source in use.
		return fmt.Errorf("%w: the source is %w", err, volume.ErrInUse)
	case isCode(err, codes.NotFound):
		return fmt.Errorf("%w: the source is gone: %w", err, volume.ErrInfeasible)
	}
	return err
}

// request returns the request, without secrets and topology.
func (v *provisioner) request(f facts) (*csi.CreateVolumeRequest, error) {
	claim := v.options.PVC
	required, err := volume.RequestedBytes(claim)
	if err != nil {
		return nil, err
	}
	limit := claim.Spec.Resources.Limits[v1.ResourceStorage]
	capabilities, err := use{
		modes: claim.Spec.AccessModes, block: volume.CheckPersistentVolumeClaimModeBlock(claim), fsType: v.fsType, mountFlags: v.options.MountOptions,
	}.capabilities(f)
	if err != nil {
		return nil, err
	}
	content, err := v.content()
	if err != nil {
		return nil, err
	}
	if v.options.Snapshot != nil {
		if err := volume.CheckRestoreSize(claim, v.options.Snapshot); err != nil {
			return nil, err
		}
	}
	return &csi.CreateVolumeRequest{
		Name: v.options.PVName, CapacityRange: capacityRange(required, limit.Value()), VolumeCapabilities: capabilities,
		Parameters: v.own, MutableParameters: v.options.MutableParameters, VolumeContentSource: content,
	}, nil
}

// content returns the content source of the volume. It refuses a data source that is neither a volume nor a snapshot of
// this driver: the user must not get an empty volume in place of a copy. A missing source is no error here: an earlier
// attempt may have created the volume, and only an equal request to the driver returns it.
func (v *provisioner) content() (*csi.VolumeContentSource, error) {
	spec := v.options.PVC.Spec
	if v.options.Snapshot != nil {
		handle := v.options.Snapshot.Handle
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: handle},
		}}, v.plugin.options.checkSnapshotHandle(handle)
	}
	if v.options.Source == nil {
		return nil, checkNoSource(spec)
	}
	src, err := v.plugin.sourceOf(volume.NewSpecFromPersistentVolume(v.options.Source, true))
	if err != nil {
		return nil, err
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: src.csi.VolumeHandle},
	}}, nil
}

// checkNoSource refuses a claim with a data source if the caller has passed neither a volume nor a snapshot.
func checkNoSource(claim v1.PersistentVolumeClaimSpec) error {
	kind := ""
	switch {
	case claim.DataSourceRef != nil:
		kind = claim.DataSourceRef.Kind
	case claim.DataSource != nil:
		kind = claim.DataSource.Kind
	default:
		return nil
	}
	if kind != "PersistentVolumeClaim" && kind != "VolumeSnapshot" {
		return fmt.Errorf("the claim's data source is a %s, and a driver copies volumes and snapshots alone: %w", kind, volume.ErrInfeasible)
	}
	return volume.Uncertain(fmt.Errorf("the %s that is the claim's data source is gone, and without its id the driver cannot be asked "+
		"whether it made the volume before: look for a volume of this name with the driver's tools", kind))
}

// check returns an error if the driver's volume differs from the request.
func (v *provisioner) check(request *csi.CreateVolumeRequest, made *csi.Volume) error {
	if err := v.plugin.checkHandle(made.GetVolumeId()); err != nil {
		return err
	}
	asked := request.GetCapacityRange()
	if err := checkCapacity(made.GetCapacityBytes(), asked.GetRequiredBytes(), asked.GetLimitBytes()); err != nil {
		return err
	}
	if source := request.GetVolumeContentSource(); source != nil && !proto.Equal(source, made.GetContentSource()) {
		return fmt.Errorf("it does not say that volume %q was made of what was asked for: %w", made.GetVolumeId(), volume.ErrInvalid)
	}
	return nil
}

// annProvisionedBy names the driver, as external-provisioner writes it.
const annProvisionedBy = "pv.kubernetes.io/provisioned-by"

func (v *provisioner) persistentVolume(request *csi.CreateVolumeRequest, made *csi.Volume) *v1.PersistentVolume {
	claim := v.options.PVC
	capacity := made.GetCapacityBytes()
	if capacity == 0 {
		capacity = request.GetCapacityRange().GetRequiredBytes()
	}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: v.options.PVName, Annotations: map[string]string{annProvisionedBy: v.plugin.options.Driver},
	}}
	if ref := v.refs[provisionerSecret]; ref != nil {
		pv.Annotations[annDeletionSecretName], pv.Annotations[annDeletionSecretNamespace] = ref.Name, ref.Namespace
	}
	if ref := v.refs[controllerModifySecret]; ref != nil {
		pv.Annotations[annModifySecretName], pv.Annotations[annModifySecretNamespace] = ref.Name, ref.Namespace
	}
	pv.Spec = v1.PersistentVolumeSpec{
		Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(capacity, resource.BinarySI)},
		AccessModes:                   slices.Clone(claim.Spec.AccessModes),
		PersistentVolumeReclaimPolicy: v.options.PersistentVolumeReclaimPolicy,
		MountOptions:                  slices.Clone(v.options.MountOptions),
		VolumeMode:                    claim.Spec.VolumeMode,
		NodeAffinity:                  nodeAffinity(made.GetAccessibleTopology()),
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: v.plugin.options.Driver, VolumeHandle: made.GetVolumeId(), VolumeAttributes: maps.Clone(made.GetVolumeContext()),
			FSType:                     v.fsType,
			ControllerPublishSecretRef: v.refs[controllerPublishSecret],
			NodeStageSecretRef:         v.refs[nodeStageSecret],
			NodePublishSecretRef:       v.refs[nodePublishSecret],
			ControllerExpandSecretRef:  v.refs[controllerExpandSecret],
			NodeExpandSecretRef:        v.refs[nodeExpandSecret],
		}},
	}
	return pv
}

// deleter deletes one volume. The volume has no path on this node.
type deleter struct {
	volume.MetricsNil

	plugin *Plugin
	src    source
}

// NewDeleter implements [volume.DeletableVolumePlugin].
func (p *Plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	src, err := p.sourceOf(spec)
	if err != nil {
		return nil, err
	}
	return &deleter{plugin: p, src: src}, nil
}

// GetPath implements [volume.Volume]. It is empty: a deleted volume is not set up.
func (d *deleter) GetPath() string { return "" }

// Delete implements [volume.Deleter]. A volume with a recorded path on this node is in use: Delete then does not call
// the driver.
func (d *deleter) Delete(ctx context.Context) error {
	p, id := d.plugin, d.src.csi.VolumeHandle
	outlived, err := p.node.mountPoints.checkUnused(ctx, id)
	if err != nil {
		return fmt.Errorf("driver %q: volume %q: %w", p.options.Driver, id, err)
	}
	s, err := p.client.session(ctx)
	if err != nil {
		return err
	}
	secrets, err := p.options.secret(ctx, d.deletionSecret())
	if err != nil {
		return err
	}
	_, err = call(ctx, s, "DeleteVolume", csi.NewControllerClient(s.conn).DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: id, Secrets: secrets})
	if err != nil {
		return err
	}
	return p.node.mountPoints.removeOutlived(outlived)
}

func (d *deleter) deletionSecret() *v1.SecretReference {
	name := d.src.pv.Annotations[annDeletionSecretName]
	if name == "" {
		return nil
	}
	return &v1.SecretReference{Name: name, Namespace: d.src.pv.Annotations[annDeletionSecretNamespace]}
}

package csiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// creation is a checked request for a volume.
type creation struct {
	name         string
	capabilities []capability
	required     int64 // bytes
	limit        int64 // bytes; zero: none
	parameters   map[string]string
	mutable      map[string]string
	content      content
	// source is the volume to be copied, snapshot the one to be restored; nil: none, or it is gone.
	source   *v1.PersistentVolume
	snapshot *volume.Snapshot
	// earlier is the record of an earlier attempt; its zero value: there was none.
	earlier volumeRecord
}

// content names what a volume is made of: at most one is not empty.
type content struct{ volumeID, snapshotID string }

// volumes makes, deletes and expands volumes, on record. Its methods are called by who has the volume's lock.
type volumes struct {
	*resolved
	*records

	snapshots *snapshots
}

// CreateVolume makes a volume, once for each name.
func (c *controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if !c.makes() {
		return nil, unimplemented("CreateVolume")
	}
	wanted, err := c.volumes.creationOf(r)
	if err != nil {
		return nil, err
	}
	var v volumeRecord
	err = c.locks.exclusively(ctx, nameLock(wanted.name), func() error {
		v, err = c.volumes.create(ctx, wanted)
		return err
	})
	if err != nil {
		return nil, err
	}
	result, err := c.volumes.volume(v)
	return &csi.CreateVolumeResponse{Volume: result}, err
}

func (s *volumes) creationOf(r *csi.CreateVolumeRequest) (creation, error) {
	wanted := creation{name: r.GetName(), parameters: r.GetParameters(), mutable: r.GetMutableParameters()}
	if err := csispec.CheckName(r.GetName()); err != nil {
		return wanted, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return wanted, status.Error(codes.InvalidArgument, "volume_capabilities is empty")
	}
	for _, each := range r.GetVolumeCapabilities() {
		checked, err := s.supported(each)
		if err != nil {
			return wanted, err
		}
		wanted.capabilities = append(wanted.capabilities, checked)
	}
	if slices.ContainsFunc(wanted.capabilities, func(c capability) bool { return c.Block != wanted.capabilities[0].Block }) {
		return wanted, status.Error(codes.InvalidArgument, "a volume is either for mount or for block access: ask for one")
	}
	if len(r.GetMutableParameters()) > 0 && !s.can.Has(volume.CapModify) {
		return wanted, status.Error(codes.InvalidArgument, "mutable_parameters: the plugin takes none: leave them out")
	}
	if err := s.checkTopology(r.GetAccessibilityRequirements()); err != nil {
		return wanted, err
	}
	var err error
	if wanted.required, wanted.limit, err = sizesOf(r.GetCapacityRange()); err != nil {
		return wanted, err
	}
	wanted.content, err = s.contentOf(r.GetVolumeContentSource())
	return wanted, err
}

func sizesOf(r *csi.CapacityRange) (required, limit int64, err error) {
	required, limit = r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, 0, status.Error(codes.InvalidArgument, "capacity_range has a negative size")
	case limit > 0 && limit < required:
		return 0, 0, status.Errorf(codes.OutOfRange, "limit_bytes %d is less than required_bytes %d", limit, required)
	}
	return required, limit, nil
}

// checkTopology refuses a volume that would be of no use where it is asked for.
func (s *volumes) checkTopology(r *csi.TopologyRequirement) error {
	if len(s.options.Topology) == 0 || len(r.GetRequisite()) == 0 {
		return nil
	}
	if slices.ContainsFunc(r.GetRequisite(), s.isHere) {
		return nil
	}
	return status.Error(codes.ResourceExhausted, "volumes of this node are of no use in the topology that is asked for")
}

// isHere reports whether this node is in the topology segment.
func (s *resolved) isHere(segment *csi.Topology) bool {
	for key, value := range segment.GetSegments() {
		if s.options.Topology[key] != value {
			return false
		}
	}
	return true
}

// contentOf checks what is asked for, and not whether it is there.
func (s *volumes) contentOf(r *csi.VolumeContentSource) (content, error) {
	switch from := r.GetType().(type) {
	case *csi.VolumeContentSource_Volume:
		if s.can.Has(volume.CapClone) {
			return content{volumeID: from.Volume.GetVolumeId()}, checkVolumeID(from.Volume.GetVolumeId())
		}
	case *csi.VolumeContentSource_Snapshot:
		if s.can.Has(volume.CapSnapshot) {
			return content{snapshotID: from.Snapshot.GetSnapshotId()}, checkSnapshotID(from.Snapshot.GetSnapshotId())
		}
	}
	if r == nil {
		return content{}, nil
	}
	return content{}, status.Error(codes.InvalidArgument, "volume_content_source: the plugin makes no volume of that")
}

// fetch reads what the volume is to be made of.
func (s *volumes) fetch(ctx context.Context, wanted *creation) error {
	switch {
	case wanted.content.volumeID != "":
		source, ok := s.state.byID(wanted.content.volumeID)
		if !ok {
			return noSuchVolume(wanted.content.volumeID)
		}
		if err := source.Step.checkKept(source.ID); err != nil {
			return err
		}
		wanted.source = source.PV
	case wanted.content.snapshotID != "":
		found, err := s.snapshots.look(ctx, wanted.content.snapshotID)
		if errors.Is(err, volume.ErrUnsupported) {
			found, err = volume.Snapshot{Handle: wanted.content.snapshotID}, nil
		}
		if err != nil {
			return err
		}
		if wanted.limit > 0 && wanted.limit < found.RestoreSize {
			return status.Errorf(codes.OutOfRange, "limit_bytes %d is less than the %d bytes of the snapshot", wanted.limit, found.RestoreSize)
		}
		wanted.snapshot = &found
	}
	return nil
}

// parametersDigest stands for the parameters on record.
func parametersDigest(parameters map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		parts = append(parts, key, parameters[key])
	}
	return digest(parts...)
}

// mutableDigest stands for the mutable parameters on record; empty for none.
func (c creation) mutableDigest() string {
	if len(c.mutable) == 0 {
		return ""
	}
	return parametersDigest(c.mutable)
}

// create makes the volume, or returns the one that was made.
func (s *volumes) create(ctx context.Context, wanted creation) (volumeRecord, error) {
	v, known := s.state.volumes.Get(wanted.name)
	switch {
	case known && v.Step == deleting:
		return v, status.Errorf(codes.Aborted, "volume %s is being deleted: delete it first", volume.Quote(v.ID))
	case known && v.Step == made:
		return v, s.checkSame(v, wanted)
	}
	if known && v.content() != wanted.content {
		return v, v.otherContent()
	}
	err := s.fetch(ctx, &wanted)
	gone := errors.Is(err, volume.ErrNotFound) || status.Code(err) == codes.NotFound
	switch {
	case known && gone:
		// An earlier call may have made the volume. The plugin then finds it by its name.
	case known && err != nil:
		return v, mayBeThere(err)
	case err != nil:
		return v, err
	}
	wanted.earlier = v
	v = volumeRecord{
		Size: s.sizeOf(wanted), Source: cmp.Or(wanted.source, v.Source),
		Step: making, Name: wanted.name, Parameters: parametersDigest(wanted.parameters), Mutable: wanted.mutableDigest(),
		Origin: wanted.content.volumeID, OriginSnapshot: wanted.content.snapshotID,
	}
	if err := s.state.volumes.Put(v.Name, v); err != nil {
		return v, volume.Transient(err)
	}
	provision := s.provision
	if gone {
		provision = s.provisionOfGone
	}
	pv, err := provision(ctx, wanted)
	if err != nil {
		if !known || refused(err) {
			return v, dropUnmade(s.resolved, s.state.volumes, v.Name, err)
		}
		return v, mayBeThere(err)
	}
	v.Step, v.PV, v.Source = made, pv, nil
	v.ID = s.idOf(pv)
	if err := s.state.volumes.Put(v.Name, v); err != nil {
		return v, volume.Uncertain(err)
	}
	return v, nil
}

// provisionOfGone calls the plugin for a volume whose source is gone and that an earlier attempt may have made. A plugin that
// forwards requests finds the volume only with the source as it was. So if the outcome of the first call is uncertain, it calls
// the plugin again with the recorded source. If the plugin's error proves that no attempt made the volume, the result is a
// sourceGoneError.
func (s *volumes) provisionOfGone(ctx context.Context, wanted creation) (*v1.PersistentVolume, error) {
	if wanted.content.snapshotID != "" {
		wanted.snapshot = &volume.Snapshot{Handle: wanted.content.snapshotID}
	}
	pv, err := s.provision(ctx, wanted)
	if wanted.earlier.Source != nil && outcome.IsUncertain(err) && outcome.DoneOf(err) == nil {
		wanted.source = wanted.earlier.Source
		pv, err = s.provision(ctx, wanted)
	}
	if errors.Is(err, volume.ErrInfeasible) && refused(err) {
		return nil, &sourceGoneError{err}
	}
	return pv, err
}

// sourceGoneError is a plugin's error that proves that no attempt made a volume whose source is gone. Its code is that of the
// specification for a missing source.
type sourceGoneError struct{ error }

// Unwrap returns the plugin's error.
func (e *sourceGoneError) Unwrap() error { return e.error }

// GRPCStatus returns the status that the client gets.
func (e *sourceGoneError) GRPCStatus() *status.Status {
	return status.New(codes.NotFound, "the source is gone, and no volume was made of it: "+e.Error())
}

// content is what the volume is made of.
func (v volumeRecord) content() content {
	return content{volumeID: v.Origin, snapshotID: v.OriginSnapshot}
}

// otherContent refuses a volume of the same name that is to be made of something else.
func (v volumeRecord) otherContent() error {
	return status.Errorf(codes.AlreadyExists, "a volume with the name %s was begun of volume %s and snapshot %s: use another name",
		volume.Quote(v.Name), volume.Quote(v.Origin), volume.Quote(v.OriginSnapshot))
}

// checkSame refuses another volume of the same name.
func (s *volumes) checkSame(v volumeRecord, wanted creation) error {
	size := v.PV.Spec.Capacity.Storage().Value()
	why := ""
	switch {
	case size < wanted.required || (wanted.limit > 0 && size > wanted.limit):
		why = fmt.Sprintf("it has %d bytes", size)
	case v.Parameters != parametersDigest(wanted.parameters):
		why = "it was made with other parameters"
	case v.Mutable != wanted.mutableDigest():
		why = "it was made with other mutable parameters"
	case v.content() != wanted.content:
		why = fmt.Sprintf("it was made of volume %s and snapshot %s", volume.Quote(v.Origin), volume.Quote(v.OriginSnapshot))
	}
	for _, c := range wanted.capabilities {
		why = cmp.Or(why, s.whyUnfit(v, c))
	}
	if why == "" {
		return nil
	}
	return status.Errorf(codes.AlreadyExists, "there is a volume with the name %s, and %s", volume.Quote(v.Name), why)
}

// provision asks the plugin for the volume.
func (s *volumes) provision(ctx context.Context, wanted creation) (*v1.PersistentVolume, error) {
	plugin, ok := s.plugin.(volume.ProvisionableVolumePlugin)
	if !ok {
		return nil, unimplemented("CreateVolume")
	}
	provisioner, err := plugin.NewProvisioner(s.volumeOptions(wanted))
	if err != nil {
		return nil, err
	}
	made, err := provisioner.Provision(ctx, s.selectedNode(), nil)
	if err != nil {
		return nil, err
	}
	if size := made.Spec.Capacity.Storage().Value(); size < wanted.required || (wanted.limit > 0 && size > wanted.limit) {
		return nil, volume.Uncertain(fmt.Errorf("the plugin has made a volume of %d bytes, where %d to %d are asked for", size, wanted.required, wanted.limit))
	}
	pv := made.DeepCopy()
	pv.Spec.MountOptions = nil
	return pv, nil
}

// selectedNode is this node, where volumes are of use nowhere else.
func (s *volumes) selectedNode() *v1.Node {
	if len(s.options.Topology) == 0 {
		return nil
	}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(s.options.NodeName), Labels: maps.Clone(s.options.Topology)}}
}

func (s *volumes) volumeOptions(wanted creation) volume.VolumeOptions {
	options := volume.VolumeOptions{
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
		PVName:                        element(wanted.name),
		PVC:                           s.claim(wanted),
		Parameters:                    withoutKubernetes(wanted.parameters),
		MutableParameters:             withoutKubernetes(wanted.mutable),
	}
	for _, c := range wanted.capabilities {
		options.MountOptions = append(options.MountOptions, c.flags...)
		options.Parameters = withFSType(options.Parameters, c.FSType)
	}
	options.Source = wanted.source.DeepCopy()
	options.Snapshot = wanted.snapshot
	return options
}

// withFSType adds the filesystem of a capability to the parameters of a class, unless they name one.
func withFSType(parameters map[string]string, fsType string) map[string]string {
	if _, chosen := parameters[volume.VolumeParameterFSType]; fsType == "" || chosen {
		return parameters
	}
	return withKey(parameters, volume.VolumeParameterFSType, fsType)
}

func withKey(values map[string]string, key, value string) map[string]string {
	if values == nil {
		values = map[string]string{}
	}
	values[key] = value
	return values
}

// claim is what stands for the claim, of which CSI says little.
func (s *volumes) claim(wanted creation) *v1.PersistentVolumeClaim {
	mode := wanted.capabilities[0].volumeMode()
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:      cmp.Or(wanted.parameters[claimNameKey], element(wanted.name)),
			Namespace: cmp.Or(wanted.parameters[claimNamespaceKey], "default"),
		},
		Spec: v1.PersistentVolumeClaimSpec{
			VolumeMode: &mode,
			Resources:  v1.VolumeResourceRequirements{Requests: storage(s.sizeOf(wanted))},
		},
	}
	if wanted.limit > 0 {
		claim.Spec.Resources.Limits = storage(wanted.limit)
	}
	for _, c := range wanted.capabilities {
		if mode, _, err := s.served(c); err == nil && !slices.Contains(claim.Spec.AccessModes, mode) {
			claim.Spec.AccessModes = append(claim.Spec.AccessModes, mode)
		}
	}
	if wanted.content.volumeID != "" {
		claim.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: element(wanted.content.volumeID)}
	}
	if wanted.snapshot != nil {
		group := snapshotGroup
		claim.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: element(wanted.snapshot.Handle)}
	}
	return claim
}

// snapshotGroup is the API group of Kubernetes' snapshots.
const snapshotGroup = "snapshot.storage.k8s.io"

// sizeOf is how large the volume is to be at least.
func (s *volumes) sizeOf(wanted creation) int64 {
	switch {
	case wanted.required > 0:
		return wanted.required
	case wanted.earlier.Size > 0:
		return wanted.earlier.Size
	case wanted.source != nil:
		return wanted.source.Spec.Capacity.Storage().Value()
	case wanted.snapshot != nil && wanted.snapshot.RestoreSize > 0:
		return wanted.snapshot.RestoreSize
	case wanted.limit > 0:
		return min(s.options.DefaultVolumeSize, wanted.limit)
	}
	return s.options.DefaultVolumeSize
}

func storage(bytes int64) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
}

// idOf returns the volume's id: the plugin's own, where it has one.
func (s *resolved) idOf(pv *v1.PersistentVolume) string {
	if source := pv.Spec.CSI; source != nil && source.Driver == s.name && checkVolumeID(source.VolumeHandle) == nil {
		return source.VolumeHandle
	}
	return pv.Name
}

// volume is what the caller is told of a volume.
func (s *volumes) volume(v volumeRecord) (*csi.Volume, error) {
	context, err := contextOf(v.ID, v.PV)
	if err != nil {
		return nil, err
	}
	result := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.PV.Spec.Capacity.Storage().Value(), VolumeContext: context}
	if v.Origin != "" {
		result.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Origin},
		}}
	}
	if v.OriginSnapshot != "" {
		result.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.OriginSnapshot},
		}}
	}
	if len(s.options.Topology) > 0 {
		result.AccessibleTopology = []*csi.Topology{{Segments: maps.Clone(s.options.Topology)}}
	}
	return result, nil
}

// DeleteVolume deletes a volume that CreateVolume has made. One that is not on record is left, and is no error: it may have been
// deleted before.
func (c *controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if !c.makes() {
		return nil, unimplemented("DeleteVolume")
	}
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, ok := c.state.byID(r.GetVolumeId())
	if !ok {
		c.logger.Warn("a volume that is not on record is not deleted", "volume", r.GetVolumeId())
		return &csi.DeleteVolumeResponse{}, nil
	}
	err := c.locks.exclusively(ctx, nameLock(v.Name), func() error {
		return c.locks.exclusively(ctx, idLock(v.ID), func() error { return c.volumes.delete(ctx, v.ID) })
	})
	if err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (s *volumes) delete(ctx context.Context, id string) error {
	v, ok := s.state.byID(id)
	if !ok {
		return nil
	}
	if users := s.usersOf(id); users != "" {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not deleted: %s", volume.Quote(id), users)
	}
	plugin, ok := s.plugin.(volume.DeletableVolumePlugin)
	if !ok {
		return unimplemented("DeleteVolume")
	}
	deleter, err := plugin.NewDeleter(s.specOfVolume(v))
	if err != nil {
		return err
	}
	before := v.Step
	v.Step = deleting
	if err := s.state.volumes.Put(v.Name, v); err != nil {
		return volume.Transient(err)
	}
	err = deleter.Delete(ctx)
	if errors.Is(err, volume.ErrInUse) && !outcome.IsUncertain(err) { // it was left as it was
		v.Step = before
		return errors.Join(err, s.state.volumes.Put(v.Name, v))
	}
	if err != nil {
		return err
	}
	if err := s.state.remove(v); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

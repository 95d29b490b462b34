package csidriver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/volume"
)

// snapshots has the calls for snapshots and groups of snapshots. [Plugin] embeds it.
type snapshots struct{ client *client }

// CanSnapshot implements [volume.SnapshottableVolumePlugin].
func (n snapshots) CanSnapshot(source *volume.Spec) (bool, error) {
	_, err := n.client.sourceOf(source)
	return err == nil, err
}

// CreateSnapshot implements [volume.SnapshottableVolumePlugin]. Parameters that begin with csi.storage.k8s.io/ are those of
// Kubernetes' VolumeSnapshotClass; all others are the driver's. The snapshot may not be ready to use yet. A name that exists with
// another source is uncertain: a driver's word about this call says nothing of an earlier one.
func (n snapshots) CreateSnapshot(ctx context.Context, options volume.SnapshotOptions) (volume.Snapshot, error) {
	request, parameters, err := n.snapshotRequest(options)
	if err != nil {
		return volume.Snapshot{}, fmt.Errorf("driver %q: snapshot %q: %w", n.client.options.Driver, options.Name, err)
	}
	s, err := n.client.session(ctx)
	if err != nil {
		return volume.Snapshot{}, err
	}
	if request.Secrets, err = n.client.options.secret(ctx, parameters.refs[snapshotterSecret]); err != nil {
		return volume.Snapshot{}, err
	}
	answer, err := call(ctx, s, "CreateSnapshot", csi.NewControllerClient(s.conn).CreateSnapshot, request)
	if isCode(err, codes.FailedPrecondition) {
		err = fmt.Errorf("%w: the source is %w", err, volume.ErrInUse) // The specification has no word for that.
	}
	if err != nil {
		return volume.Snapshot{}, explainRefusal(err, options.Name, request.GetSourceVolumeId())
	}
	made, err := s.snapshotOf(answer.GetSnapshot())
	if err == nil && made.SourceVolume != nameOfHandle(request.GetSourceVolumeId()) {
		err = fmt.Errorf("snapshot %q is of volume %q, and one of volume %q was to be made: %w",
			made.Handle, handleOfName(made.SourceVolume), request.GetSourceVolumeId(), volume.ErrInvalid)
	}
	if err != nil {
		return volume.Snapshot{}, s.refuse("CreateSnapshot", err)
	}
	return made, nil
}

// snapshotRequest returns the request without secrets.
func (n snapshots) snapshotRequest(options volume.SnapshotOptions) (*csi.CreateSnapshotRequest, snapshotParameters, error) {
	if err := csispec.CheckName(options.Name); err != nil {
		return nil, snapshotParameters{}, err
	}
	src, err := n.client.sourceOf(options.Source)
	if err != nil {
		return nil, snapshotParameters{}, err
	}
	parameters, err := splitSnapshotParameters(options.Parameters)
	return &csi.CreateSnapshotRequest{
		SourceVolumeId: src.csi.VolumeHandle, Name: options.Name, Parameters: parameters.own,
	}, parameters, err
}

// explainRefusal adds the meaning of a refused CreateSnapshot that the specification's table of errors does not have.
func explainRefusal(err error, name string, sources ...string) error {
	switch {
	case isCode(err, codes.AlreadyExists):
		return fmt.Errorf("%w: %w", err, &volume.SnapshotSourceError{Name: name, Wanted: sources})
	case isCode(err, codes.NotFound):
		return fmt.Errorf("%w: the source was %w", err, volume.ErrNotFound) // The specification has no word for that.
	}
	return err
}

// GetSnapshot implements [volume.SnapshottableVolumePlugin] with the driver's GetSnapshot, or else with its list. For a
// driver with neither, repeat CreateSnapshot.
func (n snapshots) GetSnapshot(ctx context.Context, handle string) (volume.Snapshot, error) {
	if err := n.client.options.checkSnapshotHandle(handle); err != nil {
		return volume.Snapshot{}, err
	}
	s, err := n.client.session(ctx)
	if err != nil {
		return volume.Snapshot{}, err
	}
	switch {
	case s.facts.controller[csi.ControllerServiceCapability_RPC_GET_SNAPSHOT]:
		return n.readSnapshot(ctx, s, handle)
	case s.facts.controller[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS]:
		return n.findSnapshot(ctx, s, handle)
	}
	return volume.Snapshot{}, fmt.Errorf("driver %q has neither GET_SNAPSHOT nor LIST_SNAPSHOTS: %w", s.facts.name, volume.ErrUnsupported)
}

// readSnapshot reads one snapshot.
func (n snapshots) readSnapshot(ctx context.Context, s *session, handle string) (volume.Snapshot, error) {
	secrets, err := n.secretsFor(ctx, SnapshotCall{Method: "GetSnapshot", Handle: handle})
	if err != nil {
		return volume.Snapshot{}, err
	}
	answer, err := call(ctx, s, "GetSnapshot", csi.NewControllerClient(s.conn).GetSnapshot,
		&csi.GetSnapshotRequest{SnapshotId: handle, Secrets: secrets})
	if err != nil {
		return volume.Snapshot{}, err
	}
	found, err := s.snapshotOf(answer.GetSnapshot())
	if err == nil && found.Handle != handle {
		err = fmt.Errorf("it is about snapshot %q and not about %q: %w", found.Handle, handle, volume.ErrInvalid)
	}
	if err != nil {
		return volume.Snapshot{}, s.invalidAnswer("GetSnapshot", err)
	}
	return found, nil
}

// findSnapshot reads a list with one snapshot. If the driver lists other snapshots, that does not prove that this one is gone.
func (n snapshots) findSnapshot(ctx context.Context, s *session, handle string) (volume.Snapshot, error) {
	secrets, err := n.secretsFor(ctx, SnapshotCall{Method: "ListSnapshots", Handle: handle})
	if err != nil {
		return volume.Snapshot{}, err
	}
	answer, err := call(ctx, s, "ListSnapshots", csi.NewControllerClient(s.conn).ListSnapshots,
		&csi.ListSnapshotsRequest{SnapshotId: handle, Secrets: secrets})
	if err != nil {
		return volume.Snapshot{}, err
	}
	if len(answer.GetEntries()) == 0 && answer.GetNextToken() == "" {
		return volume.Snapshot{}, fmt.Errorf("driver %q: snapshot %q: %w", s.facts.name, handle, volume.ErrNotFound)
	}
	for _, entry := range answer.GetEntries() {
		if entry.GetSnapshot().GetSnapshotId() != handle {
			continue
		}
		found, err := s.snapshotOf(entry.GetSnapshot())
		if err != nil {
			return volume.Snapshot{}, s.invalidAnswer("ListSnapshots", err)
		}
		return found, nil
	}
	return volume.Snapshot{}, s.invalidAnswer("ListSnapshots", fmt.Errorf("it is about others than snapshot %q: %w", handle, volume.ErrInvalid))
}

// ListSnapshots implements [volume.SnapshotLister]. A snapshot that is made or deleted meanwhile may be missing.
func (n snapshots) ListSnapshots(ctx context.Context) ([]volume.Snapshot, error) {
	s, err := n.client.session(ctx)
	if err != nil {
		return nil, err
	}
	if !s.facts.controller[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS] {
		return nil, fmt.Errorf("driver %q: LIST_SNAPSHOTS is not among its capabilities: %w", s.facts.name, volume.ErrUnsupported)
	}
	secrets, err := n.secretsFor(ctx, SnapshotCall{Method: "ListSnapshots"})
	if err != nil {
		return nil, err
	}
	for range maxListings {
		list, err := s.readSnapshots(ctx, secrets)
		if !errors.Is(err, errStartAgain) {
			return list, err
		}
	}
	return nil, volume.Transient(fmt.Errorf("driver %q: the list of snapshots changes faster than it can be read: %w", s.facts.name, errStartAgain))
}

// maxListings is the number of times that a list is started again because the driver cannot continue it.
const maxListings = 5

func (s *session) readSnapshots(ctx context.Context, secrets map[string]string) ([]volume.Snapshot, error) {
	var all []volume.Snapshot
	seen, tokens := map[string]bool{}, map[string]bool{}
	for token := ""; ; {
		answer, err := call(ctx, s, "ListSnapshots", csi.NewControllerClient(s.conn).ListSnapshots,
			&csi.ListSnapshotsRequest{MaxEntries: pageEntries, StartingToken: token, Secrets: secrets})
		if err != nil {
			return nil, err
		}
		for _, entry := range answer.GetEntries() {
			found, err := s.snapshotOf(entry.GetSnapshot())
			if err != nil {
				return nil, s.invalidAnswer("ListSnapshots", err)
			}
			if !seen[found.Handle] { // A changing list may have a snapshot twice.
				seen[found.Handle] = true
				all = append(all, found)
			}
		}
		token = answer.GetNextToken()
		if token == "" {
			return all, nil
		}
		if tokens[token] || len(tokens) >= maxPages {
			return nil, fmt.Errorf("driver %q: %w", s.facts.name, errEndless)
		}
		tokens[token] = true
	}
}

// DeleteSnapshot implements [volume.SnapshottableVolumePlugin].
func (n snapshots) DeleteSnapshot(ctx context.Context, handle string) error {
	if err := n.client.options.checkSnapshotHandle(handle); err != nil {
		return err
	}
	s, err := n.client.session(ctx)
	if err != nil {
		return err
	}
	secrets, err := n.secretsFor(ctx, SnapshotCall{Method: "DeleteSnapshot", Handle: handle})
	if err != nil {
		return err
	}
	_, err = call(ctx, s, "DeleteSnapshot", csi.NewControllerClient(s.conn).DeleteSnapshot,
		&csi.DeleteSnapshotRequest{SnapshotId: handle, Secrets: secrets})
	return err
}

// snapshotOf converts a driver's answer about a snapshot. An error says that the answer violates the specification.
func (s *session) snapshotOf(answer *csi.Snapshot) (volume.Snapshot, error) {
	if err := s.options.checkSnapshotHandle(answer.GetSnapshotId()); err != nil {
		return volume.Snapshot{}, err
	}
	if err := s.options.checkHandle(answer.GetSourceVolumeId()); err != nil {
		return volume.Snapshot{}, fmt.Errorf("snapshot %q: the source: %w", answer.GetSnapshotId(), err)
	}
	created, err := timeOf(answer.GetCreationTime())
	if err != nil {
		return volume.Snapshot{}, fmt.Errorf("snapshot %q: %w", answer.GetSnapshotId(), err)
	}
	if answer.GetSizeBytes() < 0 {
		return volume.Snapshot{}, fmt.Errorf("snapshot %q has %d bytes: %w", answer.GetSnapshotId(), answer.GetSizeBytes(), volume.ErrInvalid)
	}
	return volume.Snapshot{
		Handle: answer.GetSnapshotId(), SourceVolume: nameOfHandle(answer.GetSourceVolumeId()), GroupHandle: answer.GetGroupSnapshotId(),
		CreationTime: created, ReadyToUse: answer.GetReadyToUse(), RestoreSize: answer.GetSizeBytes(),
	}, nil
}

func timeOf(stamp *timestamppb.Timestamp) (time.Time, error) {
	if err := stamp.CheckValid(); err != nil {
		return time.Time{}, fmt.Errorf("creation_time: %w: %w", err, volume.ErrInvalid)
	}
	return stamp.AsTime(), nil
}

func (o Options) checkSnapshotHandle(handle string) error {
	return csispec.CheckID("snapshot handle", handle, o.MaxString)
}

// invalidAnswer returns the error of a call without an effect and with an invalid answer.
func (s *session) invalidAnswer(method string, err error) error {
	return volume.Transient(fmt.Errorf("driver %q: the answer to %s cannot be used: %w", s.options.Driver, method, err))
}

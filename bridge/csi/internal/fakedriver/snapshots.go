package fakedriver

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// CreateSnapshot implements csi.ControllerServer. A snapshot is a directory in Options.Dir.
func (c controller) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := checkParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	id := "snap-" + r.GetName()
	made := c.snapshots[id]
	if made == nil {
		var err error
		if made, err = c.takeSnapshot(id, r.GetSourceVolumeId()); err != nil {
			return nil, err
		}
	}
	if made.GetSourceVolumeId() != r.GetSourceVolumeId() {
		return nil, status.Error(codes.AlreadyExists, "of another volume")
	}
	return &csi.CreateSnapshotResponse{Snapshot: c.answerOf(made)}, nil
}

func checkParameters(parameters map[string]string) error {
	for key := range parameters {
		if key != Parameter && !strings.HasPrefix(key, "csi.storage.k8s.io/") {
			return status.Errorf(codes.InvalidArgument, "parameter %q is not known", key)
		}
	}
	return nil
}

// GetSnapshot implements csi.ControllerServer.
func (c controller) GetSnapshot(_ context.Context, r *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snapshots[r.GetSnapshotId()]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such snapshot")
	}
	return &csi.GetSnapshotResponse{Snapshot: c.answerOf(s)}, nil
}

// ListSnapshots implements csi.ControllerServer, in pages of two.
func (c controller) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	ids := c.Snapshots()
	c.mu.Lock()
	defer c.mu.Unlock()
	ids = slices.DeleteFunc(ids, func(id string) bool {
		s := c.snapshots[id]
		return s == nil || r.GetSnapshotId() != "" && id != r.GetSnapshotId() ||
			r.GetSourceVolumeId() != "" && s.GetSourceVolumeId() != r.GetSourceVolumeId()
	})
	start, err := strconv.Atoi("0" + r.GetStartingToken())
	if err != nil || start > len(ids) {
		return nil, status.Error(codes.Aborted, "no such token")
	}
	answer := &csi.ListSnapshotsResponse{}
	end := min(start+2, len(ids))
	for _, id := range ids[start:end] {
		answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: c.answerOf(c.snapshots[id])})
	}
	if end < len(ids) {
		answer.NextToken = strconv.Itoa(end)
	}
	return answer, nil
}

// DeleteSnapshot implements csi.ControllerServer.
func (c controller) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snapshots[r.GetSnapshotId()]
	if s == nil {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if s.GetGroupSnapshotId() != "" {
		return nil, status.Error(codes.InvalidArgument, "it is one of a group")
	}
	return &csi.DeleteSnapshotResponse{}, c.removeSnapshot(s.GetSnapshotId())
}

package csidriver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// turns lets one call at a time change a volume or a snapshot, as the specification requires of the caller. The zero
// value is ready to use.
type turns struct {
	mu       sync.Mutex
	byVolume map[string]*turn
}

// turn is the lock of one volume.
type turn struct {
	taken chan struct{} // of size 1
	users int           // callers that hold it or wait for it
}

// take waits until no other call changes the volume, and returns the function that ends this one's lock. With an empty
// key it locks nothing.
func (t *turns) take(ctx context.Context, key string) (release func(), err error) {
	if key == "" {
		return func() {}, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	own := t.join(key)
	select {
	case own.taken <- struct{}{}:
		return func() { <-own.taken; t.leave(key, own) }, nil
	case <-ctx.Done():
		t.leave(key, own)
		return nil, ctx.Err()
	}
}

func (t *turns) join(key string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byVolume == nil {
		t.byVolume = map[string]*turn{}
	}
	if t.byVolume[key] == nil {
		t.byVolume[key] = &turn{taken: make(chan struct{}, 1)}
	}
	t.byVolume[key].users++
	return t.byVolume[key]
}

func (t *turns) leave(key string, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own.users--
	if own.users == 0 {
		delete(t.byVolume, key)
	}
}

// changes returns the name of the volume or the snapshot that a request changes; empty for a request that only reads.
func changes(request proto.Message) string {
	switch r := request.(type) {
	case *csi.CreateVolumeRequest:
		return "name " + r.GetName()
	case *csi.CreateSnapshotRequest:
		return "snapshot name " + r.GetName()
	case *csi.DeleteSnapshotRequest:
		return "snapshot id " + r.GetSnapshotId()
	case *csi.CreateVolumeGroupSnapshotRequest:
		return "group name " + r.GetName()
	case *csi.DeleteVolumeGroupSnapshotRequest:
		return "group id " + r.GetGroupSnapshotId()
	case *csi.DeleteVolumeRequest, *csi.ControllerPublishVolumeRequest, *csi.ControllerUnpublishVolumeRequest,
		*csi.ControllerExpandVolumeRequest, *csi.ControllerModifyVolumeRequest, *csi.NodeStageVolumeRequest, *csi.NodeUnstageVolumeRequest,
		*csi.NodePublishVolumeRequest, *csi.NodeUnpublishVolumeRequest, *csi.NodeExpandVolumeRequest:
		if of, ok := request.(interface{ GetVolumeId() string }); ok {
			return "id " + of.GetVolumeId()
		}
	}
	return ""
}

const (
	busyFirst = 5 * time.Millisecond
	busyMost  = 500 * time.Millisecond
	// busyTries is about ten seconds of retries. After that the back-off of the plugin's caller applies.
	busyTries = 25
)

// untilIdle repeats a call, after growing pauses, while the driver answers that an earlier call for the volume is
// running: an interrupted call continues in the driver.
func untilIdle[A any](ctx context.Context, do func() (A, error)) (A, error) {
	pause := busyFirst
	for try := 1; ; try++ {
		answer, err := do()
		if !isBusy(err) || try == busyTries {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-time.After(pause):
		}
		pause = min(2*pause, busyMost)
	}
}

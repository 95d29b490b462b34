package csidriver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// volumeLocks lets one call at a time change a volume or a snapshot, as the specification requires of the caller. The zero
// value is ready to use.
type volumeLocks struct {
	mu    sync.Mutex
	byKey map[string]*volumeLock
}

// volumeLock is the lock of one volume.
type volumeLock struct {
	held  chan struct{} // of size 1
	users int           // callers that hold it or wait for it
}

// acquire waits until no other call changes the volume, and returns the function that ends the lock. With an empty
// key it locks nothing.
func (l *volumeLocks) acquire(ctx context.Context, key string) (release func(), err error) {
	if key == "" {
		return func() {}, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	own := l.join(key)
	select {
	case own.held <- struct{}{}:
		return func() { <-own.held; l.leave(key, own) }, nil
	case <-ctx.Done():
		l.leave(key, own)
		return nil, ctx.Err()
	}
}

func (l *volumeLocks) join(key string) *volumeLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey == nil {
		l.byKey = map[string]*volumeLock{}
	}
	if l.byKey[key] == nil {
		l.byKey[key] = &volumeLock{held: make(chan struct{}, 1)}
	}
	l.byKey[key].users++
	return l.byKey[key]
}

func (l *volumeLocks) leave(key string, own *volumeLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own.users--
	if own.users == 0 {
		delete(l.byKey, key)
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

// retryWhileBusy repeats a call, after growing pauses, while the driver answers that an earlier call for the volume is
// running: an interrupted call continues in the driver.
func retryWhileBusy[A any](ctx context.Context, do func() (A, error)) (A, error) {
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

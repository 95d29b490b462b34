package containers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/keylock"
	"github.com/volumekit/volumekit/volumemanager/internal/sentinel"
)

// Subpaths binds parts of volumes for containers, and removes the binds before a volume is torn down. It implements the
// executor's port of that name. Binds are known only by their paths on disk: a crash loses none.
type Subpaths struct {
	binder  *safepath.Subpaths
	podsDir string
	// checkRoot returns an error if the directory above all pods is not the manager's any more.
	checkRoot func(ctx context.Context) error
	// locks serializes the work on the sub-paths of one volume of one pod.
	locks keylock.Locks[subpathKey]

	mu sync.Mutex
	// preparing has the functions that cancel the running preparations.
	preparing map[subpathKey]context.CancelCauseFunc
}

// SubpathName is the element of a path below which the sub-paths of a volume are bound: {plugin}~{inner name}, and a digest of that
// where it would be too long. No two volumes of a pod share it, since plugins' names have one slash, and no tilde.
func SubpathName(plugin, inner string) string {
	name := volume.EscapeQualifiedName(plugin) + "~" + inner
	if volume.CheckPathElement(name) == nil {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "~" + hex.EncodeToString(sum[:])
}

// PartsOf returns the directory of the sub-paths of a volume that are bound for the containers of a pod: {kind}/{pod}/{name}. It is
// relative, because a record does not know the directory of pods. A mount there belongs to a volume on record, whatever its path is.
func PartsOf(uid types.UID, name string) string {
	return filepath.Join(safepath.SubpathsDir, string(uid), name)
}

// subpathKey is one volume of one pod, by its [SubpathName].
type subpathKey struct {
	pod    types.UID
	volume string
}

var _ operationexecutor.Subpaths = (*Subpaths)(nil)

// NewSubpaths returns the sub-paths of the pods below podsDir. If checkRoot returns an error, nothing is bound there or removed.
// It starts nothing.
func NewSubpaths(mounter mount.Interface, podsDir string, checkRoot func(ctx context.Context) error) *Subpaths {
	return &Subpaths{
		binder: safepath.NewSubpaths(mounter, safepath.SubpathsOptions{}), podsDir: podsDir, checkRoot: checkRoot,
		preparing: make(map[subpathKey]context.CancelCauseFunc),
	}
}

// PodDir returns the directory of a pod.
func (s *Subpaths) PodDir(uid types.UID) string { return filepath.Join(s.podsDir, string(uid)) }

// Prepare binds a part of a volume and returns its path. It calls mayBegin when no other call works on the sub-paths of that
// volume. A teardown of the volume either comes before that, and mayBegin refuses, or it ends the call.
func (s *Subpaths) Prepare(ctx context.Context, uid types.UID, sub safepath.Subpath, mayBegin func() error) (string, error) {
	key := subpathKey{uid, sub.VolumeName}
	release, ok := s.locks.Take(ctx.Done(), key)
	if !ok {
		return "", fmt.Errorf("sub-paths of the volume are being changed by another call: %w", context.Cause(ctx))
	}
	defer release()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	s.enter(key, end)
	defer s.enter(key, nil)
	if err := mayBegin(); err != nil {
		return "", err
	}
	sub.PodDir = s.PodDir(uid)
	if err := s.makePodDir(ctx, sub.PodDir); err != nil {
		return "", err
	}
	path, err := s.binder.Prepare(ctx, sub)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return path, sentinel.OfPath(err)
}

// makePodDir makes the pod's directory if none of its volumes needs one, such as those of hostPath. It is removed with the pod.
func (s *Subpaths) makePodDir(ctx context.Context, dir string) error {
	root, err := safepath.OpenOrMake(ctx, dir, safepath.MkdirOptions{}, safepath.Options{})
	if err != nil {
		return fmt.Errorf("directory of the pod, for its sub-paths: %w", sentinel.OfPath(err))
	}
	return root.Close()
}

// enter records the cancel function of the running preparation; nil if none runs.
func (s *Subpaths) enter(key subpathKey, end context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end == nil {
		delete(s.preparing, key)
		return
	}
	s.preparing[key] = end
}

// interrupt cancels the running preparation of a sub-path.
func (s *Subpaths) interrupt(key subpathKey) {
	s.mu.Lock()
	end := s.preparing[key]
	s.mu.Unlock()
	if end != nil {
		end(ErrTakenAway)
	}
}

// ErrTakenAway says that a sub-path is not prepared, because the volume is being torn down.
var ErrTakenAway = errors.New("the volume is being taken from the pod")

// CleanSubpaths implements operationexecutor.Subpaths.
func (s *Subpaths) CleanSubpaths(ctx context.Context, podUID types.UID, pluginName, innerVolumeSpecName string) error {
	key := subpathKey{podUID, SubpathName(pluginName, innerVolumeSpecName)}
	s.interrupt(key)
	release, ok := s.locks.Take(ctx.Done(), key)
	if !ok {
		return volume.Transient(fmt.Errorf("sub-paths of the volume are being prepared: %w", context.Cause(ctx)))
	}
	defer release()
	dir := s.PodDir(podUID)
	if _, err := os.Lstat(filepath.Join(dir, safepath.SubpathsDir)); errors.Is(err, os.ErrNotExist) {
		return nil // as it is for most pods: this is cheaper
	}
	if err := s.checkRoot(ctx); err != nil {
		return volume.Transient(err)
	}
	// An older manager has bound them below the inner name alone.
	var errs []error
	for _, name := range []string{key.volume, innerVolumeSpecName} {
		errs = append(errs, s.binder.CleanVolume(ctx, safepath.Owner{PodDir: dir, VolumeName: name}, mount.UnmountOptions{}))
	}
	return sentinel.OfPath(errors.Join(errs...))
}

// Release unmounts the sub-paths of one container, for all volumes.
func (s *Subpaths) Release(ctx context.Context, uid types.UID, container string) error {
	if err := s.checkRoot(ctx); err != nil {
		return err
	}
	volumes, err := s.binder.Volumes(ctx, s.PodDir(uid))
	if err != nil {
		return sentinel.OfPath(err)
	}
	var errs []error
	for _, name := range volumes {
		errs = append(errs, s.releaseVolume(ctx, subpathKey{uid, name}, container))
	}
	return errors.Join(errs...)
}

func (s *Subpaths) releaseVolume(ctx context.Context, key subpathKey, container string) error {
	release, ok := s.locks.Take(ctx.Done(), key)
	if !ok {
		return fmt.Errorf("sub-paths of volume %q are being changed by another call: %w", key.volume, context.Cause(ctx))
	}
	defer release()
	owner := safepath.Owner{PodDir: s.PodDir(key.pod), VolumeName: key.volume, ContainerName: container}
	return sentinel.OfPath(s.binder.CleanContainer(ctx, owner, mount.UnmountOptions{}))
}

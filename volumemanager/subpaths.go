package volumemanager

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
)

// subpaths binds parts of volumes for containers, and takes them off before a volume is torn down: it is the executor's
// port of that name. What is bound is known by its place on disk alone, so that nothing is forgotten in a crash.
type subpaths struct {
	binder  *safepath.Subpaths
	podsDir string
	// turns orders those who work on the sub-paths of one volume of one pod.
	turns turns[subpathKey]

	mu sync.Mutex
	// preparing ends what prepares a sub-path at this moment.
	preparing map[subpathKey]context.CancelCauseFunc
}

// subpathName is the element of a path below which the sub-paths of a volume are bound: {plugin}~{inner name}, and a digest of that
// where it would be too long. No two volumes of a pod share it, since plugins' names have one slash, and no tilde.
func subpathName(plugin, inner string) string {
	name := volume.EscapeQualifiedName(plugin) + "~" + inner
	if volume.CheckPathElement(name) == nil {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "~" + hex.EncodeToString(sum[:])
}

// subpathKey is one volume of one pod, by its subpathName.
type subpathKey struct {
	pod    types.UID
	volume string
}

var _ operationexecutor.Subpaths = (*subpaths)(nil)

func newSubpaths(mounter mount.Interface, podsDir string) *subpaths {
	return &subpaths{
		binder: safepath.NewSubpaths(mounter, safepath.SubpathsOptions{}), podsDir: podsDir,
		preparing: make(map[subpathKey]context.CancelCauseFunc),
	}
}

func (s *subpaths) podDir(uid types.UID) string { return filepath.Join(s.podsDir, string(uid)) }

// prepare binds a part of a volume and returns where. mayBegin is asked when nobody else works on the sub-paths of that
// volume: who takes the volume away comes either before that question, or ends the work.
func (s *subpaths) prepare(ctx context.Context, uid types.UID, sub safepath.Subpath, mayBegin func() error) (string, error) {
	key := subpathKey{uid, sub.VolumeName}
	release, ok := s.turns.take(ctx.Done(), key)
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
	sub.PodDir = s.podDir(uid)
	if err := s.makePodDir(ctx, sub.PodDir); err != nil {
		return "", err
	}
	path, err := s.binder.Prepare(ctx, sub)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return path, alsoOfPath(err)
}

// makePodDir makes the pod's directory where none of its volumes needs one, as those of hostPath. It goes with the pod.
func (s *subpaths) makePodDir(ctx context.Context, dir string) error {
	root, err := safepath.OpenOrMake(ctx, dir, safepath.MkdirOptions{}, safepath.Options{})
	if err != nil {
		return fmt.Errorf("directory of the pod, for its sub-paths: %w", alsoOfPath(err))
	}
	return root.Close()
}

// enter says who prepares a sub-path now; nil says that nobody does.
func (s *subpaths) enter(key subpathKey, end context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end == nil {
		delete(s.preparing, key)
		return
	}
	s.preparing[key] = end
}

// interrupt ends what prepares a sub-path now.
func (s *subpaths) interrupt(key subpathKey) {
	s.mu.Lock()
	end := s.preparing[key]
	s.mu.Unlock()
	if end != nil {
		end(errTakenAway)
	}
}

// errTakenAway is why a sub-path is not prepared any more.
var errTakenAway = errors.New("the volume is being taken from the pod")

// CleanSubpaths implements operationexecutor.Subpaths.
func (s *subpaths) CleanSubpaths(ctx context.Context, podUID types.UID, pluginName, innerVolumeSpecName string) error {
	key := subpathKey{podUID, subpathName(pluginName, innerVolumeSpecName)}
	s.interrupt(key)
	release, ok := s.turns.take(ctx.Done(), key)
	if !ok {
		return volume.Transient(fmt.Errorf("sub-paths of the volume are being prepared: %w", context.Cause(ctx)))
	}
	defer release()
	dir := s.podDir(podUID)
	if _, err := os.Lstat(filepath.Join(dir, safepath.SubpathsDir)); errors.Is(err, os.ErrNotExist) {
		return nil // as it is for most pods: this is cheaper
	}
	// An older manager has bound them below the inner name alone.
	var errs []error
	for _, name := range []string{key.volume, innerVolumeSpecName} {
		errs = append(errs, s.binder.CleanVolume(ctx, safepath.Owner{PodDir: dir, VolumeName: name}, mount.UnmountOptions{}))
	}
	return alsoOfPath(errors.Join(errs...))
}

// release takes off the sub-paths of one container, of all volumes.
func (s *subpaths) release(ctx context.Context, uid types.UID, container string) error {
	volumes, err := s.binder.Volumes(ctx, s.podDir(uid))
	if err != nil {
		return alsoOfPath(err)
	}
	var errs []error
	for _, name := range volumes {
		errs = append(errs, s.releaseVolume(ctx, subpathKey{uid, name}, container))
	}
	return errors.Join(errs...)
}

func (s *subpaths) releaseVolume(ctx context.Context, key subpathKey, container string) error {
	release, ok := s.turns.take(ctx.Done(), key)
	if !ok {
		return fmt.Errorf("sub-paths of volume %q are being changed by another call: %w", key.volume, context.Cause(ctx))
	}
	defer release()
	owner := safepath.Owner{PodDir: s.podDir(key.pod), VolumeName: key.volume, ContainerName: container}
	return alsoOfPath(s.binder.CleanContainer(ctx, owner, mount.UnmountOptions{}))
}

// ReleaseContainer undoes [Manager.ContainerMounts] once a container has ended, or if it was never started: what was
// bound for its sub-paths is unmounted, and the directories of that are removed by rmdir. It is found on disk, so that
// this works also after a restart, and for a pod that was removed or never added; where there is nothing, it succeeds. A
// container that is started again need not be released before; RemovePod releases all of its pod's.
//
// The path that a runtime was given must not be used on the host any more: the error then matches unix.EBUSY. A mount
// there which is not ours is left alone, and is an error that matches mount.ErrForeign. What can be released is, in any
// case, and the call may be repeated. The content of the volume is not touched. ctx bounds the call.
func (m *Manager) ReleaseContainer(ctx context.Context, uid types.UID, container string) error {
	for field, name := range map[string]string{"UID of the pod": string(uid), "name of the container": container} {
		if err := volume.CheckPathElement(name); err != nil {
			return fmt.Errorf("container to be released: %s: %w", field, err)
		}
	}
	if err := m.subpaths.release(ctx, uid, container); err != nil {
		return fmt.Errorf("releasing container %q of the pod with UID %q: %w", container, uid, err)
	}
	return nil
}

// alsoOfPath makes an error of safepath match the sentinel of package volume that means the same.
func alsoOfPath(err error) error {
	if errors.Is(err, safepath.ErrInvalid) {
		err = fmt.Errorf("%w (%w)", err, volume.ErrInvalid)
	}
	return alsoOfVolume(err)
}

package safepath

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// SubpathsDir is the directory beneath that of a pod in which its sub-paths are mounted.
const SubpathsDir = "volume-subpaths"

// Subpaths gives containers parts of volumes. What it has made is found again by names alone, so that a new value, of a new
// process, goes on with what an earlier one has left, at whatever step that was stopped. Its methods may be called from
// several goroutines at once; those for the same volume of the same pod take turns. One process at a time may work beneath
// the directory of a pod, and no other process may write there.
type Subpaths struct {
	mounter mount.Interface
	without mount.Feature
	calls   *abandonable.Calls
}

// SubpathsOptions says how [Subpaths] works. The zero value is ready to use.
type SubpathsOptions struct {
	// Without names kernel features that are treated as missing, so that tests can walk the fall-backs.
	Without mount.Feature
}

// NewSubpaths returns Subpaths that mount by m. It starts nothing.
func NewSubpaths(m mount.Interface, options SubpathsOptions) *Subpaths {
	return &Subpaths{mounter: m, without: options.Without, calls: newCalls()}
}

// Owner says whose sub-paths are meant.
type Owner struct {
	// PodDir is the absolute path of the pod's directory, which exists. No element of it may be a symbolic link.
	PodDir string
	// VolumeName is the volume's inner name.
	VolumeName string
	// ContainerName is the container's name.
	ContainerName string
}

// Subpath is a part of a volume for one container.
type Subpath struct {
	Owner
	// VolumePath is the absolute path at which the volume is set up.
	VolumePath string
	// FollowVolumePath follows the symbolic links in VolumePath itself. It is for a path that the operator of the host has
	// chosen, all parents of which belong to the host.
	FollowVolumePath bool
	// Apart are absolute paths from which the volume, and the part of it, must be apart. They are
	// compared with the directories that were opened, and those are what is bound.
	Apart []string
	// Path is the sub-path, relative to VolumePath; see [CleanSubpath].
	Path string
	// FollowInside follows the relative symbolic links in Path that stay within the volume, as kubelet does. The files of a
	// config map are published by such links. What they lead to is then opened without following any, so that a pod that
	// changes a link meanwhile gains nothing: the link is read, and not walked. A link that is absolute or leads out of the
	// volume is refused, and so is one to what does not exist ([ErrDangling]): a directory that is made is one that Path names.
	FollowInside bool
	// VolumeMountIndex is the index of the mount in the container's spec, from 0.
	VolumeMountIndex int
	// ReadOnly, Propagation and Kinds are those of the bind. Mounts beneath the sub-path are not taken along, as in
	// Kubernetes, so that Recursive must be false.
	BindOptions
}

// HostPath is where Prepare mounts the sub-path: PodDir/volume-subpaths/VolumeName/ContainerName/VolumeMountIndex.
func (s Subpath) HostPath() string {
	return path.Join(s.containerDir(), strconv.Itoa(s.VolumeMountIndex))
}

func (o Owner) containerDir() string { return path.Join(o.PodDir, o.containerName()) }

// volumeName and containerName are the directories of the volume and of the container, beneath PodDir.
func (o Owner) volumeName() string    { return SubpathsDir + "/" + o.VolumeName }
func (o Owner) containerName() string { return o.volumeName() + "/" + o.ContainerName }

// key makes everything that is done for one volume of one pod take turns.
func (o Owner) key() string { return path.Join(o.PodDir, o.volumeName()) }

// Prepare makes the sub-path ready and returns its HostPath, at which a runtime may mount it into the container without any
// care: only the host can change what is there.
//
// The part is opened beneath the volume without following a link, and that very part is bound. When it is missing, a
// directory is made, and those above it, with the mode of the volume's root and with its group. A sub-path that is prepared
// already, of the same inode and with the same options, stays as it is; one of another inode (the workload has replaced the
// directory) or with other options is taken off and made anew, which fails with an error that matches unix.EBUSY while
// a process on the host uses it. A mount that is not ours is an error that matches mount.ErrForeign.
//
// When Prepare fails, everything that it has made is removed again, but for an error that matches mount.ErrUncertain: then
// CleanContainer removes what may be there. A volume that hangs is such a case: the error comes when ctx ends, and until its
// Done channel closes further calls on the same VolumePath fail with mount.ErrStuck at once. Cleaning up works meanwhile.
func (s *Subpaths) Prepare(ctx context.Context, sub Subpath) (string, error) {
	wrap := func(err error) error {
		return &Error{Op: "prepare sub-path", Root: sub.VolumePath, Name: sub.Path, Err: err}
	}
	name, err := sub.check()
	if err != nil {
		return "", wrap(err)
	}
	if sub.BindOptions, err = sub.BindOptions.check(); err != nil {
		return "", wrap(err)
	}
	if err := s.prepare(ctx, name, sub); err != nil {
		return "", wrap(err)
	}
	return sub.HostPath(), nil
}

// CleanContainer takes off the sub-paths of one container and removes their mount points and the directories above them up
// to SubpathsDir, as far as they are empty. Where there are none, it succeeds. It does not look into what is mounted, and so
// works when that is dead. Nothing is removed but mount points and empty directories.
//
// A mount that is not provably ours is left alone, and so is what it covers: the error matches mount.ErrForeign. A sub-path
// that is in use on the host stays too (unix.EBUSY), unless options say otherwise. The others are cleaned all the same, and
// a repetition goes on. Expect in options is ignored.
func (s *Subpaths) CleanContainer(ctx context.Context, owner Owner, options mount.UnmountOptions) error {
	err := owner.check()
	if err == nil {
		err = checkElement(owner.ContainerName)
	}
	if err == nil {
		err = s.clean(ctx, owner, options)
	}
	return owner.wrap(err)
}

// CleanVolume is CleanContainer for all containers of the pod. ContainerName must be empty. It comes before the volume is
// torn down.
func (s *Subpaths) CleanVolume(ctx context.Context, owner Owner, options mount.UnmountOptions) error {
	err := owner.check()
	if err == nil && owner.ContainerName != "" {
		err = fmt.Errorf("all containers are meant, and %q is named: %w", owner.ContainerName, ErrInvalid)
	}
	if err == nil {
		err = s.clean(ctx, owner, options)
	}
	return owner.wrap(err)
}

// Volumes returns the names of the volumes of which containers of the pod have, or may have, sub-paths; sorted. It looks at
// names only. A pod without sub-paths has none, and so has one without a directory.
func (s *Subpaths) Volumes(ctx context.Context, podDir string) ([]string, error) {
	err := checkPodDir(podDir)
	if err != nil {
		return nil, Owner{PodDir: podDir}.wrap(err)
	}
	names, err := run(ctx, s.calls, path.Join(podDir, SubpathsDir), func([]string) {}, func(ctx context.Context) ([]string, error) {
		return s.volumes(ctx, podDir)
	})
	return names, Owner{PodDir: podDir}.wrap(err)
}

func (o Owner) wrap(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: "clean sub-paths", Root: o.PodDir, Name: o.VolumeName, Err: err}
}

func (o Owner) check() error {
	if err := checkPodDir(o.PodDir); err != nil {
		return err
	}
	if err := checkElement(o.VolumeName); err != nil {
		return fmt.Errorf("the volume's name: %w", err)
	}
	return nil
}

func checkPodDir(dir string) error {
	if !path.IsAbs(dir) || strings.ContainsRune(dir, 0) || strings.Contains(dir+"/", "/../") {
		return fmt.Errorf("the pod's directory %q is not an absolute path without \"..\": %w", dir, ErrInvalid)
	}
	return nil
}

// check returns the sub-path as a name.
func (s Subpath) check() (string, error) {
	if err := s.Owner.check(); err != nil {
		return "", err
	}
	if err := checkElement(s.ContainerName); err != nil {
		return "", fmt.Errorf("the container's name: %w", err)
	}
	if s.VolumeMountIndex < 0 || s.Recursive {
		return "", fmt.Errorf("index %d, recursive %v: %w", s.VolumeMountIndex, s.Recursive, ErrInvalid)
	}
	return CleanSubpath(s.Path)
}

package local

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/ownership"
)

// mounter binds the staged volume for one pod.
type mounter struct {
	volume.Dir

	plugin *Plugin
	src    source
	pod    *v1.Pod
}

var _ volume.Mounter = (*mounter)(nil)

// NewMounter implements [volume.VolumePlugin].
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	if _, err := filesystemNameOf(spec); err != nil {
		return nil, err
	}
	src, err := sourceOf(spec)
	if err != nil {
		return nil, err
	}
	if pod == nil {
		return nil, fmt.Errorf("local volume %q: the pod is nil: %w", src.name, volume.ErrInvalid)
	}
	path, err := p.podPath(src.name, pod.UID)
	if err != nil {
		return nil, err
	}
	return &mounter{Dir: volume.Dir{Path: path}, plugin: p, src: src, pod: pod}, nil
}

func (p *Plugin) podPath(name string, podUID types.UID) (string, error) {
	if err := errors.Join(volume.CheckPathElement(name), volume.CheckPathElement(string(podUID))); err != nil {
		return "", fmt.Errorf("local volume of pod %q: %w", podUID, err)
	}
	return p.host.GetPodVolumeDir(podUID, Name, name), nil
}

// GetAttributes implements [volume.Mounter].
func (m *mounter) GetAttributes() volume.Attributes {
	writable := !m.src.podReadOnly
	return volume.Attributes{ReadOnly: !writable, Managed: writable, SupportsSELinux: writable}
}

// SetUp implements [volume.Mounter].
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt implements [volume.Mounter]. What is staged must be what is at the volume's path; else the error matches
// [ErrNotStaged], and nothing was touched. Something else that is mounted at dir is an error that matches mount.ErrForeign.
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	if err := m.setUp(ctx, dir, args); err != nil {
		return fmt.Errorf("setting up local volume %q: %w", m.src.name, err)
	}
	return nil
}

func (m *mounter) setUp(ctx context.Context, dir string, args volume.MounterArgs) error {
	if err := ownership.CheckGroup(args.FsGroup); err != nil {
		return fmt.Errorf("%w: %w", err, volume.ErrInvalid)
	}
	found, staged, err := m.staged(ctx)
	if err != nil {
		return err
	}
	if found.isDevice {
		if err := m.checkDisk(ctx, found); err != nil {
			return err
		}
	}
	there, mounted, err := m.plugin.mountAt(ctx, dir)
	if err != nil {
		return err
	}
	if mounted {
		if err := m.fits(there, staged); err != nil {
			return err
		}
	}
	if err := m.own(ctx, dir, args); err != nil || mounted {
		return err
	}
	return m.bind(ctx, found, dir)
}

// checkDisk makes sure that the staged filesystem of a disk can serve one more pod.
func (m *mounter) checkDisk(ctx context.Context, found target) error {
	if err := found.checkWritable(m.src); err != nil {
		return err
	}
	return mount.CheckFilesystem(ctx, m.plugin.stagingPath(m.src.name))
}

// staged returns the mount of the staged volume, and what is at the volume's path.
func (m *mounter) staged(ctx context.Context) (found target, there mount.MountPoint, err error) {
	if found, err = m.plugin.find(ctx, m.src); err != nil {
		return target{}, mount.MountPoint{}, err
	}
	path := m.plugin.stagingPath(m.src.name)
	there, mounted, err := m.plugin.mountAt(ctx, path)
	if err != nil {
		return target{}, mount.MountPoint{}, err
	}
	if !mounted {
		return target{}, mount.MountPoint{}, fmt.Errorf("nothing is mounted at %q: stage the volume first: %w", path, ErrNotStaged)
	}
	shown, err := m.plugin.isShownBy(ctx, found, there)
	if err == nil && !shown {
		err = fmt.Errorf("%s (%s) is mounted at %q, and not %s: unstage it, then stage the volume: %w",
			there.Source, there.FSType, path, found.path, ErrNotStaged)
	}
	return found, there, err
}

// fits says why what is mounted for the pod already is not what is asked for.
func (m *mounter) fits(there, staged mount.MountPoint) error {
	if !shownBy(staged).Is(there) {
		return fmt.Errorf("%s (%s) is mounted at %q: tear it down first: %w", there.Source, there.FSType, there.Path, mount.ErrForeign)
	}
	// The mount's own option counts, not that of a filesystem that went read-only because of an error.
	if readOnly := slices.Contains(there.Options, "ro"); readOnly != m.src.podReadOnly {
		return fmt.Errorf("%q is mounted with read-only=%t: tear it down first: %w", there.Path, readOnly, mount.ErrForeign)
	}
	return nil
}

// bind makes the pod's mount. It has the options of the staged one, which a directory's does not have yet.
func (m *mounter) bind(ctx context.Context, found target, dir string) error {
	request := mount.Request{Source: m.plugin.stagingPath(m.src.name), Target: dir, Options: []string{"bind"}}
	if m.src.podReadOnly {
		request.Options = append(request.Options, "ro")
	}
	if !found.isDevice {
		request.UserOptions = m.src.options
	}
	return m.plugin.mount.Mount(ctx, request)
}

// unmounter takes one volume from one pod.
type unmounter struct {
	volume.Dir

	plugin *Plugin
	name   string
}

var _ volume.Unmounter = (*unmounter)(nil)

// NewUnmounter implements [volume.VolumePlugin].
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	path, err := p.podPath(name, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{Dir: volume.Dir{Path: path}, plugin: p, name: name}, nil
}

// TearDown implements [volume.Unmounter].
func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt implements [volume.Unmounter]: what is in the volume stays.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	if err := u.plugin.unmountOwn(ctx, dir); err != nil {
		return fmt.Errorf("tearing down local volume %q: %w", u.name, err)
	}
	return nil
}

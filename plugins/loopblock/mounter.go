package loopblock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/ownership"
)

type mounter struct {
	volume.Dir

	plugin *Plugin
	src    source
	pod    *v1.Pod
}

type unmounter struct {
	volume.Dir

	plugin *Plugin
}

// NewMounter implements volume.VolumePlugin.
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	src, err := filesystemOf(spec)
	if err != nil {
		return nil, err
	}
	path, err := p.podPath(spec.Name(), pod.UID)
	if err != nil {
		return nil, err
	}
	return &mounter{Dir: volume.Dir{Path: path}, plugin: p, src: src, pod: pod}, nil
}

// NewUnmounter implements volume.VolumePlugin.
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	path, err := p.podPath(name, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{Dir: volume.Dir{Path: path}, plugin: p}, nil
}

func (p *Plugin) podPath(name string, podUID types.UID) (string, error) {
	for _, element := range []string{name, string(podUID)} {
		if err := volume.CheckPathElement(element); err != nil {
			return "", err
		}
	}
	return p.host.GetPodVolumeDir(podUID, Name, name), nil
}

// GetAttributes implements volume.Mounter.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{
		ReadOnly: m.src.podReadOnly, Managed: !m.src.podReadOnly, SupportsSELinux: !m.src.podReadOnly,
	}
}

// SetUp implements volume.Mounter.
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt binds the staged directory to dir, after it has made sure that the staged directory is the volume. When it is
// not, the error matches ErrNotStaged and nothing was touched. Something else that is mounted at dir is an error that
// matches mount.ErrForeign.
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	if err := m.setUp(ctx, dir, args); err != nil {
		return fmt.Errorf("setting up volume %q: %w", m.src.handle, classify(err))
	}
	return nil
}

func (m *mounter) setUp(ctx context.Context, dir string, args volume.MounterArgs) error {
	if err := ownership.CheckGroup(args.FsGroup); err != nil {
		return fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	device, err := m.stagedDevice(ctx)
	if err != nil {
		return err
	}
	if err := mount.CheckFilesystem(ctx, m.plugin.mounts.stagingPath(m.src.handle)); err != nil {
		return err
	}
	there, mounted, err := m.plugin.mounts.at(ctx, dir)
	if err != nil {
		return err
	}
	if mounted {
		if err := m.fits(there, device); err != nil {
			return fmt.Errorf("at %q %w", dir, err)
		}
	}
	if err := m.own(ctx, args); err != nil || mounted {
		return err
	}
	return m.bind(ctx, device, dir)
}

// stagedDevice returns the device that is mounted as staged, if it is that of the volume's image.
func (m *mounter) stagedDevice(ctx context.Context) (loop.Device, error) {
	staging := m.plugin.mounts.stagingPath(m.src.handle)
	there, mounted, err := m.plugin.mounts.at(ctx, staging)
	if err != nil {
		return loop.Device{}, err
	}
	if !mounted {
		return loop.Device{}, fmt.Errorf("nothing is mounted at %q: stage the volume first: %w", staging, ErrNotStaged)
	}
	device, err := m.plugin.devices.at(ctx, m.src.handle, there.Source)
	if errors.Is(err, loop.ErrNotAttached) || errors.Is(err, mount.ErrForeign) || (err == nil && !device.IsMountedAs(there)) {
		return loop.Device{}, fmt.Errorf("%s is mounted at %q: unstage it, then stage the volume: %w",
			there.Source, staging, errors.Join(ErrNotStaged, err))
	}
	return device, err
}

// fits says why what is mounted at the pod's path is not what is asked for.
func (m *mounter) fits(there mount.MountPoint, device loop.Device) error {
	if !device.IsMountedAs(there) {
		return fmt.Errorf("%s is mounted: tear it down first: %w", there.Source, mount.ErrForeign)
	}
	// The mount's own option counts, not that of a filesystem that went read-only because of an error.
	if readOnly := slices.Contains(there.Options, "ro"); readOnly != m.src.podReadOnly {
		return fmt.Errorf("it is mounted with read-only=%t: tear it down first: %w", readOnly, mount.ErrForeign)
	}
	return nil
}

// own gives the content to the group that the pod asks for. It works on the staged directory, so nothing is bound if it
// fails. It is called at every set-up, mounted or not, so the next set-up completes an interrupted one.
func (m *mounter) own(ctx context.Context, args volume.MounterArgs) error {
	if args.FsGroup == nil || m.src.podReadOnly || args.IsRemount {
		return nil
	}
	logger := m.plugin.options.Logger.With("volume", m.src.handle, "group", *args.FsGroup)
	report, err := ownership.Apply(ctx, m.plugin.mounts.stagingPath(m.src.handle), ownership.Options{
		Group:  args.FsGroup,
		Policy: args.FSGroupChangePolicy,
		Events: m.plugin.options.Events,
		Pod:    m.pod,
		Progress: func(p ownership.Progress) {
			logger.Warn("giving the content to the group takes long", "elapsed", p.Elapsed, "visited", p.Visited)
		},
	})
	if report.GroupChanged+report.ModeChanged > 0 {
		logger.Info("the content was given to the group", "reason", report.Reason, "visited", report.Visited,
			"groups", report.GroupChanged, "modes", report.ModeChanged, "failed", report.Failed)
	}
	return err
}

// bind makes the pod's mount, and looks whether it is the volume: the staged directory may have changed since.
func (m *mounter) bind(ctx context.Context, device loop.Device, dir string) error {
	err := m.plugin.mounts.mounter.Mount(ctx, mount.Request{
		Source: m.plugin.mounts.stagingPath(m.src.handle), Target: dir, Options: m.src.bindOptions(),
	})
	if err != nil {
		return err
	}
	there, mounted, err := m.plugin.mounts.at(ctx, dir)
	if err == nil && (!mounted || !device.IsMountedAs(there)) {
		err = fmt.Errorf("what was bound at %q is not the volume: %w", dir, ErrNotStaged)
	}
	if err == nil {
		return nil
	}
	undo := mount.UnmountPath(context.WithoutCancel(ctx), m.plugin.mounts.mounter, dir, mount.UnmountOptions{})
	if undo != nil {
		return volume.Uncertain(errors.Join(err, undo))
	}
	return err
}

// TearDown implements volume.Unmounter.
func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt unmounts dir and removes it by rmdir. What is mounted there and is no loop device with an image is left alone, and
// is an error that matches mount.ErrForeign.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return classify(u.plugin.mounts.unmountOwn(ctx, dir, ""))
}

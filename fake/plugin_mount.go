package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// NewMounter implements [volume.VolumePlugin].
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	if pod == nil {
		return nil, fmt.Errorf("plugin %q: volume %q: pod is nil: %w", p.options.Name, spec.Name(), volume.ErrInvalid)
	}
	v, err := p.volumeOf(spec)
	if err != nil {
		return nil, err
	}
	set, err := p.podVolume(v.name, pod.UID)
	if err != nil {
		return nil, err
	}
	set.handle = v.handle
	if err := p.log.note(set.call(MethodNewMounter)); err != nil {
		return nil, err
	}
	return &mounter{podVolume: set, volume: v}, nil
}

// NewUnmounter implements [volume.VolumePlugin].
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	set, err := p.podVolume(name, podUID)
	if err != nil {
		return nil, err
	}
	if err := p.log.note(set.call(MethodNewUnmounter)); err != nil {
		return nil, err
	}
	return &unmounter{podVolume: set}, nil
}

// podVolume is one volume of one pod.
type podVolume struct {
	plugin *Plugin
	name   string
	pod    types.UID
	path   string
	// handle is empty if only the name is known.
	handle string
}

func (p *Plugin) podVolume(name string, podUID types.UID) (podVolume, error) {
	host, err := p.host.get()
	if err == nil {
		err = errors.Join(checkNames(name), checkPodUID(podUID))
	}
	if err != nil {
		return podVolume{}, fmt.Errorf("plugin %q: %w", p.options.Name, err)
	}
	path := host.GetPodVolumeDir(podUID, p.options.Name, name)
	return podVolume{plugin: p, name: name, pod: podUID, path: path}, nil
}

// GetPath implements [volume.Volume].
func (v *podVolume) GetPath() string { return v.path }

// GetMetrics implements [volume.MetricsProvider]. It returns only the capacity, which is the size in the backend.
func (v *podVolume) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	var metrics *volume.Metrics
	err := v.plugin.log.run(ctx, v.call(MethodGetMetrics), func() error {
		size, ok := v.plugin.options.Backend.Size(v.handle)
		if !ok || size == 0 {
			return fmt.Errorf("volume %q has no size in the backend: %w", v.name, volume.ErrUnsupported)
		}
		metrics = &volume.Metrics{Time: metav1.Now(), Capacity: resource.NewQuantity(size, resource.BinarySI)}
		return nil
	})
	if err == nil && metrics == nil {
		metrics = &volume.Metrics{}
	}
	return metrics, err
}

func (v *podVolume) call(method Method) Call {
	return Call{Method: method, Volume: v.name, Pod: v.pod, Path: v.path}
}

// mounter implements volume.Mounter and volume.MountChecker.
type mounter struct {
	podVolume
	volume volumeInfo
}

var (
	_ volume.Mounter      = (*mounter)(nil)
	_ volume.MountChecker = (*mounter)(nil)
)

func (m *mounter) CanMount(ctx context.Context) error {
	return m.plugin.log.run(ctx, m.call(MethodCanMount), func() error { return nil })
}

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.path, args)
}

func (m *mounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	call := m.call(MethodSetUp)
	call.Path = dir
	return m.plugin.log.run(ctx, call, func() error { return m.setUp(ctx, dir) })
}

func (m *mounter) setUp(ctx context.Context, dir string) error {
	request, err := m.request(ctx, dir)
	if err != nil {
		return err
	}
	if err := m.plugin.mountOnce(ctx, request); err != nil {
		return fmt.Errorf("setting up volume %q: %w", m.name, err)
	}
	return nil
}

// request returns the request for a bind mount of the staged volume, or for a mount of its own if nothing is staged.
func (m *mounter) request(ctx context.Context, dir string) (mount.Request, error) {
	access := "rw"
	if m.volume.readOnly {
		access = "ro"
	}
	if !m.plugin.staged(m.volume) {
		options := append([]string{"nosuid", "nodev", access}, m.volume.mountOptions...)
		options = append(options, m.plugin.sizeOption(m.volume)...)
		return mount.Request{Source: m.name, Target: dir, FSType: m.plugin.options.FSType, Options: options}, nil
	}
	stage, err := m.plugin.stagePath(m.handle)
	if err != nil {
		return mount.Request{}, err
	}
	mounted, err := m.plugin.mounted(ctx, stage)
	if err != nil {
		return mount.Request{}, err
	}
	if !mounted {
		return mount.Request{}, fmt.Errorf("volume %q is not staged at %s: call MountDevice first: %w",
			m.name, stage, volume.Transient(mount.ErrNotMounted))
	}
	return mount.Request{Source: stage, Target: dir, Options: []string{"bind", "nosuid", "nodev", access}}, nil
}

func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.volume.readOnly, Managed: !m.volume.readOnly}
}

// unmounter implements volume.Unmounter.
type unmounter struct{ podVolume }

var _ volume.Unmounter = (*unmounter)(nil)

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.path) }

func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	call := u.call(MethodTearDown)
	call.Path = dir
	return u.plugin.log.run(ctx, call, func() error {
		if err := u.plugin.unmount(ctx, dir); err != nil {
			return fmt.Errorf("tearing down volume %q: %w", u.name, err)
		}
		return nil
	})
}

// mounted reports whether path is a mount point. The path need not exist.
func (p *Plugin) mounted(ctx context.Context, path string) (bool, error) {
	mounted, err := p.options.Mounter.IsMountPoint(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at %s: %w", path, err)
	}
	return mounted, nil
}

// mountOnce mounts unless the target is a mount point already.
func (p *Plugin) mountOnce(ctx context.Context, request mount.Request) error {
	mounted, err := p.mounted(ctx, request.Target)
	if err != nil || mounted {
		return err
	}
	return p.options.Mounter.Mount(ctx, request)
}

// unmount removes every mount at path, and then the directory.
func (p *Plugin) unmount(ctx context.Context, path string) error {
	err := mount.UnmountPath(ctx, p.options.Mounter, path, mount.UnmountOptions{})
	if errors.Is(err, syscall.ENOTEMPTY) {
		return errors.Join(err, volume.ErrDirectoryKept)
	}
	return err
}

package volumemanager

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

func readDevice(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	content := make([]byte, 8)
	_, err = file.Read(content)
	require.NoError(t, err)
	return string(content)
}

func writeDevice(t *testing.T, path, content string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(content)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

func TestTwoPodsShareADeviceUntilTheLastHasGone(t *testing.T) {
	n := newBlockNode(t)
	first, second := blockPods()[0], blockPods()[1]
	require.NoError(t, n.attach())
	require.NoError(t, n.mapFor(first))
	require.NoError(t, n.mapFor(second))
	assert.Len(t, n.locks(t.Context()), 2)
	assert.Len(t, n.devices(t.Context()), 1)
	known, _ := n.attached()
	assert.Equal(t, n.devices(t.Context())[0].Path, known.DevicePath)
	assert.Equal(t, n.mapDir(), known.DeviceMountPath)
	writeDevice(t, n.link(first), "written!")
	assert.Equal(t, "written!", readDevice(t, n.link(second)))

	require.NoError(t, n.unmap(first))
	n.stateIsTrue()
	require.ErrorIs(t, n.unmapDevice(), volume.ErrInUse)
	assert.Equal(t, operationexecutor.DeviceGloballyMounted, n.actual.GetDeviceMountState(n.name))
	writeDevice(t, n.link(second), "of two  ")
	assert.Equal(t, "of two  ", readDevice(t, n.link(second)))
	assert.Len(t, n.locks(t.Context()), 1)

	require.NoError(t, n.unmap(second))
	require.NoError(t, n.unmapDevice())
	require.NoError(t, n.detach())
	n.nothingIsLeft()
	assert.Equal(t, "of two  ", readDevice(t, n.image()), "it went into the image")
}

// TestADeviceWithoutAKnownPodIsNotTornDownWhileItIsBound: the executor reads the binds on the node, not only the state.
func TestADeviceWithoutAKnownPodIsNotTornDownWhileItIsBound(t *testing.T) {
	n := newBlockNode(t)
	first := blockPods()[0]
	require.NoError(t, n.attach())
	require.NoError(t, n.mapFor(first))
	mounted, _ := n.actual.GetMountedVolume(n.name, volume.UniquePodName(first.UID))
	require.NoError(t, n.actual.MarkVolumeAsUnmounted(mounted.PodName, n.name)) // forgotten, and still there
	require.ErrorIs(t, n.unmapDevice(), volume.ErrInUse)
	assert.NotEmpty(t, readDevice(t, n.link(first)))
	require.NoError(t, n.end(n.executor.UnmountVolume(t.Context(), mounted.MountedVolume, n.actual)))
	n.takeAway()
}

func TestADeviceThatIsHeldElsewhereStaysUncertain(t *testing.T) {
	n := newBlockNode(t)
	require.NoError(t, n.attach())
	require.NoError(t, n.mapFor(blockPods()[0]))
	require.NoError(t, n.unmap(blockPods()[0]))
	holder, err := os.OpenFile(n.devices(t.Context())[0].Path, os.O_RDONLY|unix.O_EXCL, 0)
	require.NoError(t, err)
	defer holder.Close()
	err = n.unmapDevice()
	require.ErrorIs(t, err, volume.ErrInUse)
	require.ErrorIs(t, err, volume.ErrUncertain)
	assert.Equal(t, operationexecutor.DeviceMountUncertain, n.actual.GetDeviceMountState(n.name))
	require.ErrorIs(t, n.mapFor(blockPods()[1]), volume.ErrInUse, "nor is it given to another pod")
	require.NoError(t, holder.Close())
	n.takeAway()
}

// TestEveryStepOfABlockVolumeMayFail before it has done anything, and after it has done all. What was begun is then
// finished, or taken away.
func TestEveryStepOfABlockVolumeMayFail(t *testing.T) {
	n := newBlockNode(t)
	first, second := blockPods()[0], blockPods()[1]
	finish := func() {
		n.until(n.attach)
		n.until(func() error { return n.mapFor(first) })
		n.until(func() error { return n.mapFor(second) })
		writeDevice(t, n.link(first), "written!")
		assert.Equal(t, "written!", readDevice(t, n.link(second)))
	}
	giveUp := func() {
		for _, step := range []func() error{
			n.attach, func() error { return n.mapFor(first) }, func() error { return n.mapFor(second) },
		} {
			if err := step(); err != nil {
				require.ErrorIs(t, err, errFault)
				n.stateIsTrue()
				return
			}
		}
	}
	for _, call := range []string{
		"Attach", "WaitForAttach", "ResolveDevice", "MapDevice", "mount", "UnmapDevice", "unmount", "MappedPods",
		"RemoveMapPath", "DeviceOpened", "Detach",
	} {
		for _, when := range []string{"before", "after"} {
			for name, begin := range map[string]func(){"finished": finish, "given up": giveUp} {
				t.Run(call+" "+when+" "+name, func(t *testing.T) {
					n.t = t
					n.fault.next = call + " " + when
					begin()
					n.takeAway()
					assert.Empty(t, n.fault.next, "it was met")
				})
			}
		}
	}
	n.t = t
}

var errFault = errors.New("fault")

// fault is what fails next, once: a call, and whether before or after it has done its work.
type fault struct{ next string }

func (f *fault) meets(what string) error {
	if f.next != what {
		return nil
	}
	f.next = ""
	return errFault
}

func (f *fault) around(call string, do func() error) error {
	if err := f.meets(call + " before"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return f.meets(call + " after")
}

// faultyPlugin fails to attach, to wait and to detach. A call that is made and then fails says that it is uncertain.
type faultyPlugin struct {
	*loopblock.Plugin
	fault *fault
}

func (p *faultyPlugin) NewAttacher() (volume.Attacher, error) {
	a, err := p.Plugin.NewAttacher()
	return faultyAttacher{a, p.fault}, err
}

func (p *faultyPlugin) NewDetacher() (volume.Detacher, error) {
	d, err := p.Plugin.NewDetacher()
	return faultyDetacher{d, p.fault}, err
}

type faultyAttacher struct {
	volume.Attacher
	fault *fault
}

func (a faultyAttacher) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (path string, err error) {
	err = a.fault.around("Attach", func() error { path, err = a.Attacher.Attach(ctx, spec, node); return err })
	return path, volume.Uncertain(err)
}

func (a faultyAttacher) WaitForAttach(ctx context.Context, spec *volume.Spec, known string, pod *v1.Pod) (path string, err error) {
	err = a.fault.around("WaitForAttach", func() error { path, err = a.Attacher.WaitForAttach(ctx, spec, known, pod); return err })
	return path, err
}

type faultyDetacher struct {
	volume.Detacher
	fault *fault
}

func (d faultyDetacher) Detach(ctx context.Context, name string, node types.NodeName) error {
	return d.fault.around("Detach", func() error { return d.Detacher.Detach(ctx, name, node) })
}

// faultyMapper is the port with faults.
type faultyMapper struct {
	DeviceMapper
	fault *fault
}

func (m *faultyMapper) MapDevice(ctx context.Context, d operationexecutor.DeviceMapping) error {
	return m.fault.around("MapDevice", func() error { return m.DeviceMapper.MapDevice(ctx, d) })
}

func (m *faultyMapper) UnmapDevice(ctx context.Context, d operationexecutor.DeviceMapping) error {
	return m.fault.around("UnmapDevice", func() error { return m.DeviceMapper.UnmapDevice(ctx, d) })
}

func (m *faultyMapper) ResolveDevice(ctx context.Context, known string) (path string, err error) {
	err = m.fault.around("ResolveDevice", func() error { path, err = m.DeviceMapper.ResolveDevice(ctx, known); return err })
	return path, err
}

func (m *faultyMapper) MappedPods(ctx context.Context, path string) (pods []string, err error) {
	err = m.fault.around("MappedPods", func() error { pods, err = m.DeviceMapper.MappedPods(ctx, path); return err })
	return pods, err
}

func (m *faultyMapper) RemoveMapPath(ctx context.Context, path string) error {
	return m.fault.around("RemoveMapPath", func() error { return m.DeviceMapper.RemoveMapPath(ctx, path) })
}

// faultyMounter is what the port binds with.
type faultyMounter struct {
	mount.Interface
	fault *fault
}

// Mount that fails has mounted nothing, or says that it is uncertain.
func (m *faultyMounter) Mount(ctx context.Context, r mount.Request) error {
	if err := m.fault.meets("mount before"); err != nil {
		return err
	}
	if err := m.Interface.Mount(ctx, r); err != nil {
		return err
	}
	return volume.Uncertain(m.fault.meets("mount after"))
}

func (m *faultyMounter) Unmount(ctx context.Context, target string, o mount.UnmountOptions) error {
	return m.fault.around("unmount", func() error { return m.Interface.Unmount(ctx, target, o) })
}

// faultyUse tells of the devices.
type faultyUse struct {
	*loop.Manager
	fault *fault
}

func (u *faultyUse) DeviceOpened(ctx context.Context, path string) (opened bool, err error) {
	err = u.fault.around("DeviceOpened", func() error { opened, err = u.Manager.DeviceOpened(ctx, path); return err })
	return opened, err
}

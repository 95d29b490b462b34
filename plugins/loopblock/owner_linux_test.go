package loopblock_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

func TestAForeignLoopDeviceIsNotUnmounted(t *testing.T) {
	n := newNode(t)
	spec, other := n.provision("pv"), n.provision("other")
	staging := n.stagingPath(spec)
	pod := n.mounterOf(spec, "pod").GetPath()
	foreign := filepath.Join(n.root, "foreign")
	require.NoError(t, os.Rename(n.image("other"), foreign))
	loops := loop.New(loop.Options{})
	device, err := loops.Attach(t.Context(), foreign, loop.AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, loops.Detach(context.WithoutCancel(t.Context()), device)) })
	unmounter, err := n.plugin.NewUnmounter(spec.Name(), "pod")
	require.NoError(t, err)
	deviceUnmounter, err := n.plugin.NewDeviceUnmounter()
	require.NoError(t, err)
	for path, takeOff := range map[string]func(context.Context) error{
		pod:     unmounter.TearDown,
		staging: func(ctx context.Context) error { return deviceUnmounter.UnmountDevice(ctx, staging) },
	} {
		require.NoError(t, os.MkdirAll(path, 0o750))
		n.cleanMount(path)
		require.NoError(t, unix.Mount(device.Path, path, "ext4", 0, ""))
		require.ErrorIs(t, takeOff(t.Context()), mount.ErrForeign)
		assert.Len(t, n.mountsAt(path), 1)
		require.NoError(t, unix.Unmount(path, 0))
		require.NoError(t, takeOff(t.Context()))
	}

	// Another volume's device is no business of this one's staging directory either.
	n.provision("other")
	require.NoError(t, os.MkdirAll(staging, 0o750))
	require.NoError(t, unix.Mount(n.attach(other), staging, "ext4", 0, ""))
	require.ErrorIs(t, deviceUnmounter.UnmountDevice(t.Context(), staging), mount.ErrForeign)
	require.NoError(t, unix.Unmount(staging, 0))
}

// The plugin's own mount is unmounted whichever program attached the device, also if the image was deleted, replaced or moved.
func TestAVolumeIsTakenOffWhateverBecameOfItsImage(t *testing.T) {
	for name, become := range map[string]func(n *node, spec *volume.Spec){
		"nothing": func(*node, *volume.Spec) {},
		"deleted": func(n *node, _ *volume.Spec) { require.NoError(t, os.Remove(n.image("pv"))) },
		"made anew": func(n *node, _ *volume.Spec) {
			require.NoError(t, os.Remove(n.image("pv")))
			n.provision("pv")
		},
		"kept elsewhere": func(n *node, _ *volume.Spec) {
			n.images = filepath.Join(n.root, "elsewhere")
			n.plugin = n.pluginOver(n.mounter)
		},
	} {
		for _, mark := range []string{"", "by Attach"} {
			t.Run(name+mark, func(t *testing.T) {
				if mark == "" && (name == "made anew" || name == "kept elsewhere") {
					return // by what should it be known?
				}
				n := newNode(t)
				spec := n.provision("pv")
				loops := loop.New(loop.Options{})
				if mark == "" {
					_, err := loops.Attach(t.Context(), n.image("pv"), loop.AttachOptions{})
					require.NoError(t, err)
				}
				device := n.attach(spec)
				found, err := loops.Inspect(t.Context(), device)
				require.NoError(t, err)
				t.Cleanup(func() { assert.NoError(t, loops.Detach(context.WithoutCancel(t.Context()), found)) })
				require.NoError(t, n.tryStage(spec, device))
				staging := n.stagingPath(spec)
				n.setUp(spec, "pod")
				become(n, spec)
				n.tearDown(spec, "pod")
				unmounter, err := n.plugin.NewDeviceUnmounter()
				require.NoError(t, err)
				require.NoError(t, unmounter.UnmountDevice(t.Context(), staging))
				assert.NoDirExists(t, staging)
			})
		}
	}
}

// A teardown is what helps where the filesystem of the images is dead, so that it does not wait for it.
func TestAVolumeIsTakenOffWhereTheImagesGiveNoAnswer(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stagingPath(spec)
	foreign := filepath.Join(n.root, "foreign")
	require.NoError(t, os.Rename(n.image("pv"), foreign))
	loops := loop.New(loop.Options{})
	device, err := loops.Attach(t.Context(), foreign, loop.AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, loops.Detach(context.WithoutCancel(t.Context()), device)) })

	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{})
	var told bytes.Buffer
	n.images = f.Path()
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, Logger: slog.New(slog.NewTextHandler(&told, nil))})
	unmounter, err := n.plugin.NewDeviceUnmounter()
	require.NoError(t, err)
	stage := func() {
		require.NoError(t, os.MkdirAll(staging, 0o750))
		n.cleanMount(staging)
		require.NoError(t, unix.Mount(device.Path, staging, "ext4", 0, ""))
	}

	stage()
	require.ErrorIs(t, unmounter.UnmountDevice(t.Context(), staging), mount.ErrForeign, "they answer")
	require.NoError(t, unix.Unmount(staging, 0))
	for name, fault := range map[string]func(){
		"they hang": func() { f.Hang(mounttest.FUSELookup) },
		"they fail": func() { f.Fail(mounttest.FUSELookup, unix.EIO) },
	} {
		stage()
		told.Reset()
		fault()
		require.NoError(t, unmounter.UnmountDevice(t.Context(), staging), name)
		assert.NoDirExists(t, staging, name)
		assert.Contains(t, told.String(), "device="+device.Path, name)
		f.Heal()
	}
}

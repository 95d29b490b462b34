package local

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

const able = volume.CapPersistent | volume.CapDeviceMount | volume.CapBlock | volume.CapNodeExpand |
	volume.CapMountOptions | volume.CapReconstruct

// counter numbers the volumes.
var counter atomic.Int64

func named(path string) *volume.Spec {
	pv := pvOf(path)
	pv.Name = "disk-" + strconv.FormatInt(counter.Add(1), 10)
	return specOf(pv)
}

func TestConformanceOfDirectories(t *testing.T) {
	mounttest.RequireMounts(t)
	volumetest.Run(t, volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin { return New(Options{}) },
		NewSpec:   func(t testing.TB) *volume.Spec { return named(t.TempDir()) },
		Require:   able,
		FSGroup:   true,
		// A directory cannot be mapped as a block volume.
		NewBlockSpec: func(testing.TB) *volume.Spec { return nil },
		Shared:       true,
		Lifetime:     volumetest.LifetimeOfStorage,
	})
}

func TestConformanceOfDevices(t *testing.T) {
	mounttest.RequireRoot(t)
	template := filepath.Join(t.TempDir(), "template")
	require.NoError(t, os.WriteFile(template, make([]byte, diskSize), 0o600))
	require.NoError(t, format.Make(t.Context(), template, format.MakeOptions{FSType: "ext4"}))
	volumetest.Run(t, volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin { return New(Options{}) },
		NewSpec: func(t testing.TB) *volume.Spec {
			content, err := os.ReadFile(template) // A copy is faster than mkfs for each case.
			require.NoError(t, err)
			return named(newDeviceOf(t, content))
		},
		Require:  able,
		FSGroup:  true,
		Shared:   true,
		Lifetime: volumetest.LifetimeOfStorage,
	})
}

// byPath is a fake mounter that gets the path of a descriptor as source: the fake does not know the descriptors of this process.
type byPath struct{ *fake.Mounter }

func (m byPath) Mount(ctx context.Context, request mount.Request) error {
	if path, err := os.Readlink(request.Source); err == nil {
		request.Source = path
	}
	return m.Mounter.Mount(ctx, request)
}

func TestConformanceOnFakeMounts(t *testing.T) {
	world := fake.NewMounter(fake.MounterOptions{})
	volumetest.Run(t, volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin {
			plugin := New(Options{Mounter: byPath{world}})
			plugin.isSame = func(string, string) (bool, error) { return true, nil } // The fake mounts show no real files.
			return plugin
		},
		NewSpec: func(t testing.TB) *volume.Spec {
			dir := t.TempDir()
			require.NoError(t, world.MkdirAll(dir, 0o755))
			return named(dir)
		},
		NewBlockSpec: func(testing.TB) *volume.Spec { return nil },
		World:        world,
		Require:      able,
		Shared:       true,
		Lifetime:     volumetest.LifetimeOfStorage,
	})
}

// diskSize is enough for a small filesystem.
const diskSize = 8 << 20

// newDevice returns a blank block device.
func newDevice(t testing.TB) string { return newDeviceOf(t, make([]byte, diskSize)) }

func newDeviceOf(t testing.TB, content []byte) string {
	t.Helper()
	mounttest.RequireRoot(t)
	image := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, content, 0o600))
	return attach(t, image)
}

// attach returns a loop device of an image.
func attach(t testing.TB, image string) string {
	t.Helper()
	loops := loop.New(loop.Options{})
	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, loops.Detach(context.WithoutCancel(t.Context()), device)) })
	return device.Path
}

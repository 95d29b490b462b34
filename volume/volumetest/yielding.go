package volumetest

import (
	"context"
	"math/rand/v2"
	"runtime"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// Yielding returns a mounter that calls mounter, and yields to other goroutines for a random time before and after each call. Give it
// to the plugin under test: other calls can then run between a check and the mount that follows from it. The cases M5 and M9 stop one
// call at each of these moments while another runs. So they detect a missing lock each time, if the plugin passes on its context.
func Yielding(mounter mount.Interface) mount.Interface { return yielding{mounter} }

type yielding struct{ mounter mount.Interface }

// Unwrap returns the mounter beneath.
func (u yielding) Unwrap() mount.Interface { return u.mounter }

// Metrics returns the metrics provider of the mounter beneath for a path. A mounter without one is that of this machine.
func (u yielding) Metrics(path string) volume.MetricsProvider {
	if elsewhere, ok := u.mounter.(interface {
		Metrics(path string) volume.MetricsProvider
	}); ok {
		return elsewhere.Metrics(path)
	}
	return volume.NewMetricsStatFS(path)
}

// yield lets other goroutines run. A case may stop the call here.
func yield(ctx context.Context) {
	step(ctx)
	for range rand.IntN(64) {
		runtime.Gosched()
	}
}

func (u yielding) Mount(ctx context.Context, request mount.Request) error {
	yield(ctx)
	defer yield(ctx)
	return u.mounter.Mount(ctx, request)
}

func (u yielding) Unmount(ctx context.Context, target string, options mount.UnmountOptions) error {
	yield(ctx)
	defer yield(ctx)
	return u.mounter.Unmount(ctx, target, options)
}

func (u yielding) RemoveTarget(ctx context.Context, path string) error {
	yield(ctx)
	defer yield(ctx)
	return u.mounter.RemoveTarget(ctx, path)
}

func (u yielding) IsMountPoint(ctx context.Context, path string) (bool, error) {
	yield(ctx)
	defer yield(ctx)
	return u.mounter.IsMountPoint(ctx, path)
}

func (u yielding) Lookup(ctx context.Context, path string) (mount.MountPoint, error) {
	yield(ctx)
	defer yield(ctx)
	return u.mounter.Lookup(ctx, path)
}

func (u yielding) List(ctx context.Context) ([]mount.MountPoint, error) {
	yield(ctx)
	defer yield(ctx)
	return u.mounter.List(ctx)
}

func (u yielding) GetMountRefs(ctx context.Context, path string) ([]string, error) {
	yield(ctx)
	defer yield(ctx)
	return u.mounter.GetMountRefs(ctx, path)
}

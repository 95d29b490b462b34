package volumetest

import (
	"context"
	"math/rand/v2"
	"runtime"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// Unsteady returns a mounter that does what mounter does, and lets other goroutines go first for a random while, before
// each call and after it. Give it to the plugin under test: a look and the mount that follows from it then no longer happen
// in one breath. The cases M5 and M9 hold one call at each of these moments while another runs, so that a lock that is missing is
// noticed each time: the plugin must hand on the context that it is given.
func Unsteady(mounter mount.Interface) mount.Interface { return unsteady{mounter} }

type unsteady struct{ mounter mount.Interface }

// Unwrap returns the mounter beneath.
func (u unsteady) Unwrap() mount.Interface { return u.mounter }

// Metrics returns what measures a path as the mounter beneath does. One that does not say so is of this machine.
func (u unsteady) Metrics(path string) volume.MetricsProvider {
	if elsewhere, ok := u.mounter.(interface {
		Metrics(path string) volume.MetricsProvider
	}); ok {
		return elsewhere.Metrics(path)
	}
	return volume.NewMetricsStatFS(path)
}

// sway lets others go first. A case may hold the call here.
func sway(ctx context.Context) {
	step(ctx)
	for range rand.IntN(64) {
		runtime.Gosched()
	}
}

func (u unsteady) Mount(ctx context.Context, request mount.Request) error {
	sway(ctx)
	defer sway(ctx)
	return u.mounter.Mount(ctx, request)
}

func (u unsteady) Unmount(ctx context.Context, target string, options mount.UnmountOptions) error {
	sway(ctx)
	defer sway(ctx)
	return u.mounter.Unmount(ctx, target, options)
}

func (u unsteady) RemoveTarget(ctx context.Context, path string) error {
	sway(ctx)
	defer sway(ctx)
	return u.mounter.RemoveTarget(ctx, path)
}

func (u unsteady) IsMountPoint(ctx context.Context, path string) (bool, error) {
	sway(ctx)
	defer sway(ctx)
	return u.mounter.IsMountPoint(ctx, path)
}

func (u unsteady) Lookup(ctx context.Context, path string) (mount.MountPoint, error) {
	sway(ctx)
	defer sway(ctx)
	return u.mounter.Lookup(ctx, path)
}

func (u unsteady) List(ctx context.Context) ([]mount.MountPoint, error) {
	sway(ctx)
	defer sway(ctx)
	return u.mounter.List(ctx)
}

func (u unsteady) GetMountRefs(ctx context.Context, path string) ([]string, error) {
	sway(ctx)
	defer sway(ctx)
	return u.mounter.GetMountRefs(ctx, path)
}

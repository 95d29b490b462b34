package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// This file finds out what a plugin did otherwise than it said.

// ErrContractViolation matches the error of an operation in which the plugin broke its contract: success without a mount, a
// failure with one, a teardown that left one. The step CheckSpec of an operation whose plugin changed the spec that it was
// given has it too.
var ErrContractViolation = errors.New("the plugin broke its contract")

// isMounted reports whether something is mounted at a path of the pod's or the plugin's directories; known is false when
// that was not or could not be asked. Other paths are not ours to ask about. It is asked also when ctx has ended
// meanwhile, since a call that succeeded all the same is checked like any other; the deadline of a call bounds it.
func (g *generator) isMounted(ctx context.Context, x *execution, path string) (mounted, known bool) {
	if g.mounts == nil || !g.isOurs(x, path) {
		return false, false
	}
	var is bool
	ask := func(ctx context.Context) (err error) {
		is, err = g.mounts.IsMountPoint(ctx, path)
		if errors.Is(err, fs.ErrNotExist) {
			is, err = false, nil
		}
		return err
	}
	var err error
	if _, prompt := g.mounts.(PromptMountPoints); prompt {
		err = x.port(context.WithoutCancel(ctx), "IsMountPoint", ask)
	} else {
		err = x.callInGoroutine(ctx, x.reading("IsMountPoint"), ask)
	}
	if err != nil {
		return false, false // The call may still write.
	}
	return is, true
}

func (g *generator) isOurs(x *execution, path string) bool {
	host := g.plugins.Host()
	return isBeneath(path, host.GetPodsDir()) || isBeneath(path, host.GetPluginDir(x.pluginName()))
}

func isBeneath(path, dir string) bool {
	return strings.HasPrefix(filepath.Clean(path), filepath.Clean(dir)+string(filepath.Separator))
}

// checkRoot returns an error if paths below the node's root may not lead to our volumes. It checks also when ctx has ended meanwhile.
func (g *generator) checkRoot(ctx context.Context, x *execution) error {
	checker, ok := g.journal.(RootChecker)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.timeout())
	defer cancel()
	return checker.CheckRoot(ctx)
}

// checkRootAfter returns an uncertain error if the root may have been replaced before the end of a call that reported success.
func (g *generator) checkRootAfter(ctx context.Context, x *execution, call string) error {
	if err := g.checkRoot(ctx, x); err != nil {
		return volume.Uncertain(fmt.Errorf("%s reported success, but may have worked in another directory: %w", call, err))
	}
	return nil
}

// uncertainIfReplaced returns err, the error of a call that makes something below the root. It is uncertain if err means that there is
// nothing, and the root may have been replaced during the call.
func (g *generator) uncertainIfReplaced(ctx context.Context, x *execution, err error) error {
	if class := outcome.ClassOf(err); class != Final && class != Transient || notCalled(err) {
		return err
	}
	if replaced := g.checkRoot(ctx, x); replaced != nil {
		return volume.Uncertain(errors.Join(err, replaced))
	}
	return err
}

// uncertainIfMounted returns err, the error of a call that makes a mount at path. It is uncertain if err means that there is no
// mount, and there is one, or may be one where the root was moved to.
func (g *generator) uncertainIfMounted(ctx context.Context, x *execution, path string, err error) error {
	err = g.uncertainIfReplaced(ctx, x, err)
	if class := outcome.ClassOf(err); class != Final && class != Transient || notCalled(err) {
		return err
	}
	if mounted, _ := g.isMounted(ctx, x, path); !mounted {
		return err
	}
	if errors.Is(err, outcome.ErrForeign) {
		return volume.Uncertain(err) // The plugin says itself that something is mounted. Nothing proves that the mount is not its own.
	}
	return volume.Uncertain(fmt.Errorf("%w (and yet something is mounted at %q: %w)", err, path, ErrContractViolation))
}

// checkUndone returns an error if a call that removes the mount at path has succeeded, and a mount is still there, or may be where the
// root was moved to.
func (g *generator) checkUndone(ctx context.Context, x *execution, call, path string) error {
	if err := g.checkRootAfter(ctx, x, call); err != nil {
		return err
	}
	if mounted, _ := g.isMounted(ctx, x, path); mounted {
		return volume.Uncertain(fmt.Errorf("%s reported success, and something is still mounted at %q: %w", call, path, ErrContractViolation))
	}
	return nil
}

// checkDone returns an error if a call that makes a mount at path has succeeded, and there is none.
func (g *generator) checkDone(ctx context.Context, x *execution, call, path string) error {
	if mounted, known := g.isMounted(ctx, x, path); known && !mounted {
		return volume.Uncertain(fmt.Errorf("%s reported success, and nothing is mounted at %q: %w", call, path, ErrContractViolation))
	}
	return nil
}

// mountsOf returns the plugin if it declares which of its calls make a mount, and a port can check that; otherwise nil.
func (g *generator) mountsOf(plugin volume.VolumePlugin) volume.MountingVolumePlugin {
	if g.mounts == nil {
		return nil
	}
	mounting, _ := plugin.(volume.MountingVolumePlugin)
	return mounting
}

// queryMount reads from a plugin whether a call that succeeded leaves a mount.
func (x *execution) queryMount(ctx context.Context, name string, ask func() bool) (bool, error) {
	return construct(ctx, x, name, func() (bool, error) { return ask(), nil })
}

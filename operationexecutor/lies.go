package operationexecutor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// This file finds out what a plugin did otherwise than it said.

// ErrUntrue matches the error of an operation in which the plugin reported what is not so: success without a mount, a
// failure with one, a teardown that left one. The step CheckSpec of an operation whose plugin changed the spec that it was
// given has it too.
var ErrUntrue = errors.New("the plugin reported what is not so")

// isMounted reports whether something is mounted at a path of the pod's or the plugin's directories; known is false when
// that was not or could not be asked. Other paths are not ours to ask about. It is asked also when ctx has ended
// meanwhile, since a call that succeeded all the same is checked like any other; the deadline of a call bounds it.
func (g *Generator) isMounted(ctx context.Context, x *execution, path string) (mounted, known bool) {
	if g.mounts == nil || !g.isOurs(x, path) {
		return false, false
	}
	mounted, err := perform(context.WithoutCancel(ctx), x, x.asking("IsMountPoint"), func(ctx context.Context) (bool, error) {
		mounted, err := g.mounts.IsMountPoint(ctx, path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return mounted, err
	})
	return mounted, err == nil
}

func (g *Generator) isOurs(x *execution, path string) bool {
	host := g.plugins.Host()
	return isBeneath(path, host.GetPodsDir()) || isBeneath(path, host.GetPluginDir(x.pluginName()))
}

func isBeneath(path, dir string) bool {
	return strings.HasPrefix(filepath.Clean(path), filepath.Clean(dir)+string(filepath.Separator))
}

// doubtFailure returns err, the error of a call that should have made a mount at path, as uncertain when it says that there
// is none and there is one.
func (g *Generator) doubtFailure(ctx context.Context, x *execution, path string, err error) error {
	if class := outcome.ClassOf(err); class != Final && class != Transient || notCalled(err) {
		return err
	}
	if mounted, _ := g.isMounted(ctx, x, path); !mounted {
		return err
	}
	return volume.Uncertain(fmt.Errorf("%w (and yet something is mounted at %q: %w)", err, path, ErrUntrue))
}

// checkUndone returns an error when a call that should have taken away the mount at path has succeeded, and it is there.
func (g *Generator) checkUndone(ctx context.Context, x *execution, call, path string) error {
	if mounted, _ := g.isMounted(ctx, x, path); !mounted {
		return nil
	}
	return volume.Uncertain(fmt.Errorf("%s reported success, and something is still mounted at %q: %w", call, path, ErrUntrue))
}

// checkDone returns an error when a call that makes a mount at path has succeeded, and there is none.
func (g *Generator) checkDone(ctx context.Context, x *execution, call, path string) error {
	if mounted, known := g.isMounted(ctx, x, path); mounted || !known {
		return nil
	}
	return volume.Uncertain(fmt.Errorf("%s reported success, and nothing is mounted at %q: %w", call, path, ErrUntrue))
}

// mountsOf returns what plugin says of its mounts; nil when it says nothing, or when nobody can check it.
func (g *Generator) mountsOf(plugin volume.VolumePlugin) volume.MountingVolumePlugin {
	if g.mounts == nil {
		return nil
	}
	mounting, _ := plugin.(volume.MountingVolumePlugin)
	return mounting
}

// asksMount asks a plugin whether a call that succeeded leaves a mount.
func (x *execution) asksMount(ctx context.Context, name string, ask func() bool) (bool, error) {
	return construct(ctx, x, name, func() (bool, error) { return ask(), nil })
}

// loan is a spec that plugins got, as a copy of their own.
type loan struct {
	generator      *Generator
	original, lent *volume.Spec
	said           []byte // by lent when it was lent
}

// lend returns a copy of spec for plugins, so that one that changes it spoils nothing; the same one all through the
// operation. When that has ended, it is compared with the original.
func (g *Generator) lend(x *execution, spec *volume.Spec) *volume.Spec {
	if spec == nil {
		return nil
	}
	if x.loan.original == spec {
		return x.loan.lent
	}
	if l, ok := x.loans[spec]; ok {
		return l.lent
	}
	lent := &volume.Spec{Volume: spec.Volume.DeepCopy(), PersistentVolume: spec.PersistentVolume.DeepCopy(), ReadOnly: spec.ReadOnly}
	x.keepLoan(loan{generator: g, original: spec, lent: lent, said: inBytes(lent)})
	return lent
}

func (x *execution) keepLoan(l loan) {
	if x.loan.original == nil {
		x.loan = l
		return
	}
	if x.loans == nil {
		x.loans = make(map[*volume.Spec]loan)
	}
	x.loans[l.original] = l
}

// settleLoans tells of specs that a plugin has changed. The operation's own outcome is not changed by that, since the spec
// is not either. While a call still runs, its spec is its own.
func (x *execution) settleLoans() {
	if x.loan.original == nil || len(x.stillRunning()) > 0 {
		return
	}
	x.settle(&x.loan)
	for _, l := range x.loans {
		x.settle(&l)
	}
}

func (x *execution) settle(l *loan) {
	if l.isUnchanged() {
		return
	}
	_ = x.step("CheckSpec", func() error {
		return fmt.Errorf("plugin %q changed the spec of volume %q that it was given, which its contract forbids: %w",
			x.pluginName(), l.original.Name(), ErrUntrue)
	})
	l.generator.event(volumeObject(l.original), v1.EventTypeWarning, ReasonVolumePluginMisbehaved,
		"plugin %q changed the spec of volume %q that it was given; nobody else sees that", x.pluginName(), l.original.Name())
	x.executor.options.Logger.Warn("a plugin changed a spec that it was given", logKeys(x.op.Info())...)
}

// isUnchanged compares what the spec says in bytes with what it said, which passes over the many fields that are not set, and
// looks at the original where these differ: there is more than one text for a quantity. The original is not asked for its
// bytes, since a quantity keeps its text once it was asked for it.
func (l *loan) isUnchanged() bool {
	return l.said != nil && bytes.Equal(inBytes(l.lent), l.said) || equality.Semantic.DeepEqual(l.original, l.lent)
}

// inBytes returns what a spec says; nil when that cannot be told.
func inBytes(spec *volume.Spec) []byte {
	said := []byte{0}
	if spec.ReadOnly {
		said[0] = 1
	}
	if v := spec.Volume; v != nil {
		b, err := v.Marshal()
		if err != nil {
			return nil
		}
		said = append(b, said...)
	}
	if pv := spec.PersistentVolume; pv != nil {
		b, err := pv.Marshal()
		if err != nil {
			return nil
		}
		said = append(b, said...)
	}
	return said
}

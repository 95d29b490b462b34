package operationexecutor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
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
	mounted, err := perform(context.WithoutCancel(ctx), x, x.asking(isMountPoint), func(ctx context.Context) (bool, error) {
		return g.askMountPoint(ctx, path)
	})
	return mounted, err == nil
}

const isMountPoint = "IsMountPoint"

func (g *Generator) askMountPoint(ctx context.Context, path string) (bool, error) {
	mounted, err := g.mounts.IsMountPoint(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

// thenIsMounted is isMounted in the goroutine of the operation: see then.
func (g *Generator) thenIsMounted(ctx context.Context, x *execution, path string, next func(ctx context.Context, mounted, known bool) error) error {
	if g.mounts == nil || !g.isOurs(x, path) {
		return next(ctx, false, false)
	}
	c := x.asking(isMountPoint)
	c.always = true
	return then(x, c, func(ctx context.Context) (bool, error) {
		return g.askMountPoint(ctx, path)
	}, func(ctx context.Context, mounted bool, err error) error { return next(ctx, mounted, err == nil) })
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

// thenCheckUndone goes on with an error when a call that should have taken away the mount at path has succeeded, and it is
// there.
func (g *Generator) thenCheckUndone(ctx context.Context, x *execution, call, path string, next func(ctx context.Context, err error) error) error {
	return g.thenIsMounted(ctx, x, path, func(ctx context.Context, mounted, _ bool) error {
		if !mounted {
			return next(ctx, nil)
		}
		return next(ctx, volume.Uncertain(fmt.Errorf("%s reported success, and something is still mounted at %q: %w", call, path, ErrUntrue)))
	})
}

// thenCheckDone goes on with an error when a call that makes a mount at path has succeeded, and there is none.
func (g *Generator) thenCheckDone(ctx context.Context, x *execution, call, path string, next func(ctx context.Context, err error) error) error {
	return g.thenIsMounted(ctx, x, path, func(ctx context.Context, mounted, known bool) error {
		if mounted || !known {
			return next(ctx, nil)
		}
		return next(ctx, volume.Uncertain(fmt.Errorf("%s reported success, and nothing is mounted at %q: %w", call, path, ErrUntrue)))
	})
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
	said           *[]byte // by lent when it was lent
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
	x.keepLoan(loan{generator: g, original: spec, lent: lent, said: g.inBytes(lent)})
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
	unchanged := l.isUnchanged()
	l.generator.texts.Put(l.said)
	if unchanged {
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
	says := l.generator.inBytes(l.lent)
	defer l.generator.texts.Put(says)
	return len(*says) > 0 && bytes.Equal(*says, *l.said) || equality.Semantic.DeepEqual(l.original, l.lent)
}

// inBytes returns what a spec says, in memory of g.texts; nothing when that cannot be told.
func (g *Generator) inBytes(spec *volume.Spec) *[]byte {
	text, ok := g.texts.Get().(*[]byte)
	if !ok {
		text = new([]byte)
	}
	said := append((*text)[:0], 0)
	if spec.ReadOnly {
		said[0] = 1
	}
	var err error
	if v := spec.Volume; v != nil {
		said, err = appendBytes(said, v)
	}
	if pv := spec.PersistentVolume; pv != nil && err == nil {
		said, err = appendBytes(said, pv)
	}
	if err != nil {
		said = said[:0]
	}
	*text = said
	return text
}

// object is what can be told in bytes.
type object interface {
	Size() int
	MarshalToSizedBuffer(into []byte) (int, error)
}

func appendBytes(said []byte, o object) ([]byte, error) {
	before, size := len(said), o.Size()
	said = slices.Grow(said, size)[:before+size]
	_, err := o.MarshalToSizedBuffer(said[before:])
	return said, err
}

package operationexecutor

import (
	"bytes"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/volume"
)

// This file gives plugins copies of specs, and finds out whether a plugin changed one.

// specCopy is a spec that plugins got, as a copy for one operation.
type specCopy struct {
	generator      *generator
	original, copy *volume.Spec
	was            *[]byte // the copy in bytes when it was made
}

// copyOf returns a copy of spec for plugins, so that one that changes it spoils nothing; the same one all through the
// operation. When that has ended, it is compared with the original.
func (g *generator) copyOf(x *execution, spec *volume.Spec) *volume.Spec {
	if spec == nil {
		return nil
	}
	for _, c := range x.specs {
		if c.original == spec {
			return c.copy
		}
	}
	if kept, ok := x.session.takeSpec(spec); ok {
		x.specs = append(x.specs, kept)
		return kept.copy
	}
	made := &volume.Spec{Volume: spec.Volume.DeepCopy(), PersistentVolume: spec.PersistentVolume.DeepCopy(), ReadOnly: spec.ReadOnly}
	x.specs = append(x.specs, specCopy{generator: g, original: spec, copy: made, was: g.inBytes(made)})
	return made
}

// takeSpec returns the copy of a spec that was kept for an operation, and false when that of another one was, or none.
func (s *session) takeSpec(original *volume.Spec) (kept specCopy, ok bool) {
	if s.spec.original != original {
		return specCopy{}, false
	}
	kept, s.spec = s.spec, specCopy{}
	return kept, true
}

// keepSpec keeps a copy for the next operation.
func (s *session) keepSpec(c specCopy) {
	s.dropSpec()
	s.spec = c
}

func (s *session) dropSpec() {
	if s.spec.original != nil {
		s.spec.generator.texts.Put(s.spec.was)
	}
	s.spec = specCopy{}
}

// checkSpecs tells of specs that a plugin has changed. The operation's own outcome is not changed by that, since the spec
// is not either. While a call still runs, its spec is its own.
func (x *execution) checkSpecs() {
	if len(x.specs) == 0 || len(x.stillRunning()) > 0 {
		return
	}
	for _, c := range x.specs {
		x.checkSpec(c)
	}
}

func (x *execution) checkSpec(c specCopy) {
	if c.isUnchanged() {
		x.session.keepSpec(c)
		return
	}
	c.generator.texts.Put(c.was)
	_ = x.step("CheckSpec", func() error {
		return fmt.Errorf("plugin %q changed the spec of volume %q that it was given, which its contract forbids: %w",
			x.pluginName(), c.original.Name(), ErrContractViolation)
	})
	c.generator.event(volumeObject(c.original), v1.EventTypeWarning, reasonVolumePluginMisbehaved,
		"plugin %q changed the spec of volume %q that it was given; the change has no effect", x.pluginName(), c.original.Name())
	x.executor.options.Logger.Warn("a plugin changed a spec that it was given", logKeys(x.op.Info())...)
}

// isUnchanged compares what the copy says in bytes with what it said, which passes over the many fields that are not set, and
// looks at the original where these differ: there is more than one text for a quantity. The original is not asked for its
// bytes, since a quantity keeps its text once it was asked for it.
func (c *specCopy) isUnchanged() bool {
	is := c.generator.inBytes(c.copy)
	defer c.generator.texts.Put(is)
	return len(*is) > 0 && bytes.Equal(*is, *c.was) || equality.Semantic.DeepEqual(c.original, c.copy)
}

// inBytes returns what a spec says, in memory of g.texts; nothing when that cannot be told.
func (g *generator) inBytes(spec *volume.Spec) *[]byte {
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

package volumetest

import (
	"context"
	"errors"
	"maps"

	"github.com/volumekit/volumekit/volume"
)

func modifyCases() []Case {
	return []Case{
		{
			Rule: "H1", Group: "modify", Name: "attributes change",
			Sentence: "After ModifyVolume the volume MUST have the attributes that the parameters name. ModifyVolume MUST succeed again, also by a new value of the plugin.",
			Needs:    volume.CapModify, run: attributesChange,
		},
		{
			Rule: "H2", Group: "modify", Name: "unknown parameter",
			Sentence: "ModifyVolume with a parameter that the plugin does not know MUST fail with an error that matches ErrInfeasible, and MUST change no attribute.",
			Needs:    volume.CapModify, run: unknownAttribute,
		},
		{
			Rule: "H3", Group: "modify", Name: "in use",
			Sentence: "ModifyVolume MUST leave the content unchanged and, while a pod uses the volume, its mount and its files in use. An error that matches ErrInUse MAY demand a volume that is attached nowhere.",
			Needs:    volume.CapModify, run: modifiedInUse,
		},
		{
			Rule: "H4", Group: "modify", Name: "attributes stay",
			Sentence: "The attributes MUST stay when the volume is torn down, unstaged, detached, attached, staged and set up again, also by a new value of the plugin.",
			Needs:    volume.CapModify, run: attributesStay,
		},
		{
			Rule: "H5", Group: "modify", Name: "attributes that are not named",
			Sentence: "ModifyVolume MUST leave an attribute that the parameters do not name as it is.",
			Needs:    volume.CapModify, run: unnamedAttributesStay,
		},
		{
			Rule: "H6", Group: "modify", Name: "other volumes",
			Sentence: "ModifyVolume MUST leave the attributes of every other volume unchanged.",
			Needs:    volume.CapModify, run: modifiedAlone,
		},
		{
			Rule: "H7", Group: "modify", Name: "cancelled",
			Sentence: "ModifyVolume whose context ends, before or during the call, MUST do no harm: the next call MUST finish the work, and the content MUST be unchanged.",
			Needs:    volume.CapModify, run: cancelledModification,
		},
		{
			Rule: "H8", Group: "modify", Name: "new volume",
			Sentence: "Provision MUST give a new volume the attributes that MutableParameters name. With others for the same PVName it MUST give the volume these, or return an error. For one that the plugin does not know it MUST return an error.",
			Needs:    volume.CapModify | volume.CapProvision, run: provisionedWithAttributes,
		},
	}
}

// unknownKey is a parameter that no plugin knows.
const unknownKey = "volumetest-no-such-parameter"

// modifiable is a volume whose attributes are changed.
type modifiable struct {
	e             *env
	spec          *volume.Spec
	first, second map[string]string
}

func (e *env) newModifiable() *modifiable {
	e.t.Helper()
	spec := e.newSpec()
	if spec.PersistentVolume == nil {
		e.t.Skipf("volume %q is no PersistentVolume: only these are modified", spec.Name())
	}
	return e.modifiableOf(spec)
}

func (e *env) modifiableOf(spec *volume.Spec) *modifiable {
	e.t.Helper()
	m := &modifiable{e: e, spec: spec, first: e.config.MutableParameters[0], second: e.config.MutableParameters[1]}
	if len(m.first) == 0 || len(m.second) == 0 {
		e.broken("the plugin has %v, and Config.MutableParameters does not say what can be modified", volume.CapModify)
	}
	return m
}

func (m *modifiable) try(ctx context.Context, parameters map[string]string) error {
	m.e.t.Helper()
	plugin, err := m.e.registry.FindModifiablePluginBySpec(m.spec)
	m.e.must("finding what modifies", err)
	return plugin.ModifyVolume(ctx, m.spec, maps.Clone(parameters))
}

// modify gives the volume attributes, and fails unless it has them.
func (m *modifiable) modify(parameters map[string]string) {
	m.e.t.Helper()
	m.e.must("ModifyVolume", m.try(m.e.ctx(), parameters))
	m.expect(parameters)
}

// expect fails unless the storage has these attributes, where Config.Attributes can read that.
func (m *modifiable) expect(attributes map[string]string) {
	m.e.t.Helper()
	if m.e.config.Attributes == nil {
		return
	}
	has := m.e.config.Attributes(m.e.t, m.spec)
	for key, want := range attributes {
		if has[key] != want {
			m.e.broken("volume %q has %q for its attribute %q instead of %q", m.spec.Name(), has[key], key, want)
		}
	}
}

func attributesChange(e *env) {
	m := e.newModifiable()
	m.modify(m.first)
	m.modify(m.first)
	m.modify(m.second)
	e.crash()
	m.modify(m.second)
	m.modify(m.first)
}

func unknownAttribute(e *env) {
	m := e.newModifiable()
	m.modify(m.first)
	wrong := maps.Clone(m.second)
	wrong[unknownKey] = "value"
	for range 2 {
		if err := m.try(e.ctx(), wrong); !errors.Is(err, volume.ErrInfeasible) {
			e.broken("ModifyVolume with an unknown parameter returned %v", err)
		}
		m.expect(m.first)
		e.crash()
	}
}

func modifiedInUse(e *env) {
	m := e.newModifiable()
	e.use(m.spec, func(h holding) {
		h.put(contentMark + "content")
		for _, parameters := range []map[string]string{m.first, m.second} {
			m.modifyUsed(parameters)
			h.holds(contentMark + "content")
			if p, ok := h.(*podVolume); ok {
				p.expectUsable()
			}
		}
		h.put(contentMark + "later content")
	})
	m.modify(m.first)
	if e.config.Lifetime == LifetimeOfStorage {
		e.expectContent(m.spec, "later content")
	}
}

// modifyUsed modifies a volume that is in use, where the plugin can.
func (m *modifiable) modifyUsed(parameters map[string]string) {
	m.e.t.Helper()
	if err := m.try(m.e.ctx(), parameters); !errors.Is(err, volume.ErrInUse) {
		m.e.must("ModifyVolume of a volume in use", err)
		m.expect(parameters)
	}
}

func attributesStay(e *env) {
	m := e.newModifiable()
	m.modify(m.first)
	for _, parameters := range []map[string]string{m.first, m.second, m.first} {
		e.use(m.spec, func(holding) { m.expect(parameters) })
		e.crash()
		e.use(m.spec, func(holding) { m.expect(parameters) })
		m.expect(parameters)
		next := m.second
		if maps.Equal(parameters, m.second) {
			next = m.first
		}
		m.modify(next)
	}
}

func unnamedAttributesStay(e *env) {
	m := e.newModifiable()
	for _, parameters := range []map[string]string{m.first, m.second} {
		m.modify(parameters)
		m.modify(nil)
		for key := range parameters {
			m.modify(map[string]string{key: parameters[key]})
			m.expect(parameters)
		}
	}
}

func modifiedAlone(e *env) {
	m, other := e.newModifiable(), e.newModifiable()
	m.modify(m.first)
	other.modify(other.second)
	m.expect(m.first)
	m.modify(m.second)
	m.modify(m.first)
	other.expect(other.second)
}

func cancelledModification(e *env) {
	m := e.newModifiable()
	e.use(m.spec, func(h holding) {
		h.put(contentMark + "content")
		if errors.Is(m.try(e.ctx(), m.first), volume.ErrInUse) {
			return
		}
		m.cancel()
		h.holds(contentMark + "content")
	})
	m.cancel()
	if e.config.Lifetime == LifetimeOfStorage {
		e.expectContent(m.spec, "content")
	}
}

func (m *modifiable) cancel() {
	m.e.t.Helper()
	m.e.cut(4, func(ctx context.Context) error { return m.try(ctx, m.second) },
		func() { m.modify(m.second) }, func() { m.modify(m.first) })
}

func provisionedWithAttributes(e *env) {
	for _, which := range []int{0, 1} {
		options := e.volumeOptions()
		options.MutableParameters = maps.Clone(e.config.MutableParameters[which])
		m := e.modifiableOf(volume.NewSpecFromPersistentVolume(e.provision(options), false))
		m.expect(options.MutableParameters)
		e.crash()
		e.provision(options)
		m.expect(options.MutableParameters)
		options.MutableParameters = maps.Clone(e.config.MutableParameters[1-which])
		if _, err := e.tryProvision(options); err == nil {
			m.expect(options.MutableParameters)
		}
	}
	options := e.volumeOptions()
	options.MutableParameters = map[string]string{unknownKey: "value"}
	pv, err := e.tryProvision(options)
	if err == nil {
		e.tryDelete(volume.NewSpecFromPersistentVolume(pv, false))
		e.broken("a volume was made with an unknown mutable parameter")
	}
}

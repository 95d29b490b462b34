package volume

// This file has the look-ups of plugins with any capabilities, and what all look-ups share.

// FindPluginBySpec returns the one plugin that supports spec. Every failure is a [*LookupError]. A plugin whose
// CanSupport panics counts as one that declines.
func (m *VolumePluginMgr) FindPluginBySpec(spec *Spec) (VolumePlugin, error) {
	entry, err := m.entryBySpec(spec)
	if err != nil {
		return nil, err
	}
	return entry.plugin, nil
}

// FindPluginByName returns the plugin with the given name. The name is not escaped. Every failure is a [*LookupError].
func (m *VolumePluginMgr) FindPluginByName(name string) (VolumePlugin, error) {
	entry, err := m.entryByName(name)
	if err != nil {
		return nil, err
	}
	return entry.plugin, nil
}

func (m *VolumePluginMgr) entryByName(name string) (*registered, error) {
	set := m.plugins.Load()
	if entry := set.byName[name]; entry != nil {
		return entry, nil
	}
	err := &LookupError{Query: describeName(name), classes: []error{ErrNoPlugin}}
	for _, entry := range set.sorted {
		err.Declined = append(err.Declined, Declined{Plugin: entry.name})
	}
	return nil, err
}

func (m *VolumePluginMgr) entryBySpec(spec *Spec) (*registered, error) {
	if spec == nil {
		return nil, errNilSpec()
	}
	set := m.plugins.Load()
	declaring := set.declaring(spec)
	if len(declaring) == 1 && len(set.kinds.undeclared) == 0 {
		return declaring[0], nil
	}
	a := set.ask(spec, declaring)
	if a.matched == nil || a.more != nil {
		return nil, set.explain(spec, a)
	}
	return a.matched, nil
}

// explain returns the error of a look-up that matched no plugin or several, with the reasons of the plugins that declined.
func (s *pluginSet) explain(spec *Spec, a matches) error {
	err := &LookupError{Query: describeSpec(spec), classes: []error{ErrNoPlugin}}
	for _, entry := range s.sorted {
		if a.has(entry) {
			err.Matched = append(err.Matched, entry.name)
			continue
		}
		err.Declined = append(err.Declined, Declined{Plugin: entry.name, Why: a.why(entry, spec)})
	}
	if len(err.Matched) > 1 {
		err.classes = []error{ErrMultiplePlugins}
	}
	return err
}

// reason returns why the plugin declines spec, or nil if it gives no reason.
func (r *registered) reason(spec *Spec) (why error) {
	explainer, ok := r.plugin.(Explainer)
	if !ok {
		return nil
	}
	if err := guard(r.name, "ExplainSupport", func() { why = explainer.ExplainSupport(spec) }); err != nil {
		why = err
	}
	return spec.Secrets(r.publicKeys).Redact(why)
}

// lacks returns the error of a plugin that matches but lacks a needed capability.
func (r *registered) lacks(query string, needs Capabilities) error {
	return &LookupError{
		Query:   query,
		Needs:   needs,
		Matched: []string{r.name},
		classes: []error{ErrNoPlugin, ErrUnsupported},
	}
}

// findByName returns the plugin with that name as a T. T is the interface that declares the capability needs.
func findByName[T any](m *VolumePluginMgr, name string, needs Capabilities) (T, error) {
	var none T
	entry, err := m.entryByName(name)
	if err != nil {
		return none, err
	}
	plugin, ok := entry.plugin.(T)
	if !ok || !entry.capabilities.Has(needs) {
		return none, entry.lacks(describeName(name), needs)
	}
	return plugin, nil
}

// findBySpec returns the plugin that supports spec as a T, which is the interface that gives the capability needs.
func findBySpec[T any](m *VolumePluginMgr, spec *Spec, needs Capabilities) (T, *registered, error) {
	var none T
	entry, err := m.entryBySpec(spec)
	if err != nil {
		return none, nil, err
	}
	plugin, ok := entry.plugin.(T)
	if !ok || !entry.capabilities.Has(needs) {
		return none, nil, entry.lacks(describeSpec(spec), needs)
	}
	return plugin, entry, nil
}

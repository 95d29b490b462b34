package volume

import (
	"math/bits"
	"slices"
)

// kindIndex finds the plugins that serve a spec, by the kinds that the plugins declare. It is immutable.
type kindIndex struct {
	scopes [scopeCount]scopeIndex // of PodScope and PersistentScope
	// undeclared are the plugins that declare no kinds. The registry calls their CanSupport for every spec.
	undeclared []*registered
}

// scopeIndex is the index of one scope. Each entry of byDriver also holds the plugins of the same source in bySource.
type scopeIndex struct {
	bySource [sourceCount][]*registered
	byDriver [sourceCount]map[string][]*registered
}

// newKindIndex returns the index of entries.
func newKindIndex(entries []*registered) *kindIndex {
	x := &kindIndex{}
	for _, entry := range entries {
		if len(entry.kinds) == 0 {
			x.undeclared = append(x.undeclared, entry)
		}
		x.add(entry, (*scopeIndex).addSource)
	}
	for _, entry := range entries {
		x.add(entry, (*scopeIndex).addDriver)
	}
	return x
}

// add adds entry, with each of its kinds, to the scopes of that kind.
func (x *kindIndex) add(entry *registered, to func(*scopeIndex, SpecKind, *registered)) {
	for _, kind := range entry.kinds {
		for _, scope := range []SpecScope{PodScope, PersistentScope} {
			if kind.Scope == AnyScope || kind.Scope == scope {
				to(&x.scopes[scope], kind, entry)
			}
		}
	}
}

func (x *scopeIndex) addSource(kind SpecKind, entry *registered) {
	src, ok := sourceNamed(kind.Source)
	if !ok || kind.Driver != "" || slices.Contains(x.bySource[src], entry) {
		return
	}
	x.bySource[src] = append(x.bySource[src], entry)
}

// addDriver adds a kind with a driver. It copies from bySource, so call it after every addSource.
func (x *scopeIndex) addDriver(kind SpecKind, entry *registered) {
	src, ok := sourceNamed(kind.Source)
	if !ok || kind.Driver == "" {
		return
	}
	if x.byDriver[src] == nil {
		x.byDriver[src] = map[string][]*registered{}
	}
	found, ok := x.byDriver[src][kind.Driver]
	if !ok {
		found = slices.Clone(x.bySource[src])
	}
	if !slices.Contains(found, entry) {
		found = append(found, entry)
	}
	x.byDriver[src][kind.Driver] = found
}

// find returns the plugins that declare the kind of spec. src is the only source of spec.
func (x *scopeIndex) find(spec *Spec, src source) []*registered {
	if drivers := x.byDriver[src]; drivers != nil {
		driver, _ := spec.driverOf(src)
		if found, ok := drivers[driver]; ok {
			return found
		}
	}
	return x.bySource[src]
}

// declaring returns the plugins that declare a kind of spec. Its cost does not depend on the number of other plugins,
// unless the spec has several sources.
func (s *pluginSet) declaring(spec *Spec) []*registered {
	var scope SpecScope
	var set sourceSet
	switch {
	case spec.PersistentVolume == nil && spec.Volume != nil:
		scope, set = PodScope, inlineSources(&spec.Volume.VolumeSource)
	case spec.Volume == nil && spec.PersistentVolume != nil:
		scope, set = PersistentScope, persistentSources(&spec.PersistentVolume.Spec.PersistentVolumeSource)
	default:
		return s.declaringAny(spec)
	}
	if set&(set-1) != 0 {
		return s.declaringAny(spec)
	}
	if set == 0 {
		return nil
	}
	return s.kinds.scopes[scope].find(spec, source(bits.TrailingZeros64(uint64(set))))
}

// declaringAny is declaring for a spec with any number of sources.
func (s *pluginSet) declaringAny(spec *Spec) []*registered {
	var found []*registered
	for _, entry := range s.sorted {
		if entry.declares(spec) {
			found = append(found, entry)
		}
	}
	return found
}

// declares reports whether spec is of a kind that the plugin declares.
func (r *registered) declares(spec *Spec) bool {
	return slices.ContainsFunc(r.kinds, func(k SpecKind) bool { return k.Matches(spec) })
}

// matches are the plugins that serve a spec. A single plugin, the usual case, allocates nothing.
type matches struct {
	matched *registered   // the first
	more    []*registered // the others
	panics  map[*registered]error
}

// ask returns the plugins in declaring, which declare a kind of spec, and those that declare no kinds and support spec.
func (s *pluginSet) ask(spec *Spec, declaring []*registered) matches {
	var a matches
	for _, entry := range declaring {
		a.add(entry)
	}
	for rest := s.kinds.undeclared; len(rest) > 0; {
		rest = rest[a.queryEach(spec, rest):]
	}
	return a
}

// queryEach calls CanSupport of the plugins until one panics, and returns how many it has called. All calls share one
// recover, because one for each would cost more than most calls.
func (a *matches) queryEach(spec *Spec, entries []*registered) (asked int) {
	defer func() {
		if value := recover(); value != nil {
			entry := entries[asked-1]
			a.panicked(entry, newPanicError(entry.name, "CanSupport", value))
		}
	}()
	for _, entry := range entries {
		asked++
		if entry.plugin.CanSupport(spec) {
			a.add(entry)
		}
	}
	return asked
}

func (a *matches) add(entry *registered) {
	if a.matched == nil {
		a.matched = entry
		return
	}
	a.more = append(a.more, entry)
}

func (a *matches) panicked(entry *registered, err error) {
	if a.panics == nil {
		a.panics = map[*registered]error{}
	}
	a.panics[entry] = err
}

func (a *matches) has(entry *registered) bool {
	return a.matched == entry || slices.Contains(a.more, entry)
}

// why returns the reason why a plugin did not match. It does not call a plugin that declares kinds.
func (a *matches) why(entry *registered, spec *Spec) error {
	if err := a.panics[entry]; err != nil {
		return err
	}
	if len(entry.kinds) > 0 {
		return notDeclared(entry.kinds)
	}
	return entry.reason(spec)
}

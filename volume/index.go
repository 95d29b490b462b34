package volume

import (
	"math/bits"
	"slices"
)

// kindIndex finds the plugins that may serve a spec, by the kinds that they declare. It is immutable.
type kindIndex struct {
	// bySource are the plugins that declare a source whatever its driver, byDriver those of one driver.
	bySource [sourceCount][]*registered
	byDriver [sourceCount]map[string][]*registered
	// undeclared are the plugins that declare nothing: they are asked about every spec.
	undeclared []*registered
}

// newKindIndex returns the index of entries; what it finds is in their order.
func newKindIndex(entries []*registered) *kindIndex {
	x := &kindIndex{}
	for _, entry := range entries {
		if len(entry.kinds) == 0 {
			x.undeclared = append(x.undeclared, entry)
		}
		for _, kind := range entry.kinds {
			x.add(kind, entry)
		}
	}
	return x
}

func (x *kindIndex) add(kind SpecKind, entry *registered) {
	src, ok := sourceNamed(kind.Source)
	if !ok { // declaredKinds has refused it
		return
	}
	if kind.Driver == "" {
		x.bySource[src] = append(x.bySource[src], entry)
		return
	}
	if x.byDriver[src] == nil {
		x.byDriver[src] = map[string][]*registered{}
	}
	x.byDriver[src][kind.Driver] = append(x.byDriver[src][kind.Driver], entry)
}

// ofDriver returns the plugins that declare the driver which spec names in src.
func (x *kindIndex) ofDriver(src source, spec *Spec) []*registered {
	drivers := x.byDriver[src]
	if drivers == nil {
		return nil
	}
	driver, _ := spec.driverOf(src)
	return drivers[driver]
}

// ask asks the plugins that may serve spec: those that declare a kind of it, and those that declare nothing. How many
// others there are makes no difference, unless more than one source is set.
func (s *pluginSet) ask(spec *Spec) answers {
	var a answers
	set := uint64(spec.sources())
	if set&(set-1) != 0 {
		a.ask(spec, s.candidates(spec))
		return a
	}
	a.ask(spec, s.kinds.undeclared)
	if set != 0 {
		src := source(bits.TrailingZeros64(set))
		a.ask(spec, s.kinds.bySource[src])
		a.ask(spec, s.kinds.ofDriver(src, spec))
	}
	return a
}

// candidates are the plugins that may serve spec, in the order of their names.
func (s *pluginSet) candidates(spec *Spec) []*registered {
	var found []*registered
	for _, entry := range s.sorted {
		if entry.mayServe(spec) {
			found = append(found, entry)
		}
	}
	return found
}

// mayServe reports whether CanSupport is asked: a plugin that declares kinds is asked about specs of these alone.
func (r *registered) mayServe(spec *Spec) bool {
	return len(r.kinds) == 0 || slices.ContainsFunc(r.kinds, func(k SpecKind) bool { return k.Matches(spec) })
}

// answers are what plugins have said about a spec. That one serves it, the usual answer, allocates nothing.
type answers struct {
	matched *registered   // the first that serves it
	more    []*registered // the others that do
	panics  map[*registered]error
}

func (a *answers) ask(spec *Spec, entries []*registered) {
	for _, entry := range entries {
		ok, err := entry.supports(spec)
		switch {
		case err != nil:
			a.panicked(entry, err)
		case ok && a.matched == nil:
			a.matched = entry
		case ok:
			a.more = append(a.more, entry)
		}
	}
}

func (a *answers) panicked(entry *registered, err error) {
	if a.panics == nil {
		a.panics = map[*registered]error{}
	}
	a.panics[entry] = err
}

func (a *answers) has(entry *registered) bool {
	return a.matched == entry || slices.Contains(a.more, entry)
}

// why returns the reason of a plugin that did not match. One that declares other kinds is not asked for a reason either.
func (a *answers) why(entry *registered, spec *Spec) error {
	if err := a.panics[entry]; err != nil {
		return err
	}
	if !entry.mayServe(spec) {
		return notDeclared(entry.kinds)
	}
	return entry.reason(spec)
}

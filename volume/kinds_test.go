package volume

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

// declaring is a plain plugin that declares kinds. It counts how often it is asked whether it supports a spec.
type declaring struct {
	plain
	kinds func() []SpecKind
	asked int
}

func (p *declaring) SpecKinds() []SpecKind { return p.kinds() }

func (p *declaring) CanSupport(spec *Spec) bool {
	p.asked++
	return p.plain.CanSupport(spec)
}

func newDeclaring(name string, serves func(*Spec) bool, kinds ...SpecKind) *declaring {
	return &declaring{plain: plain{name: name, serves: serves}, kinds: func() []SpecKind { return kinds }}
}

func csiVolume(driver string) *Spec {
	return NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver}}})
}

func flexVolume(driver string) *Spec {
	return NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
		FlexVolume: &v1.FlexVolumeSource{Driver: driver}}})
}

// eachSource calls f for every source that k8s.io/api knows, with a spec that has it and no other.
func eachSource(f func(name string, spec *Spec)) {
	inline := func() (*Spec, reflect.Value) {
		vol := &v1.Volume{Name: "data"}
		return NewSpecFromVolume(vol), reflect.ValueOf(&vol.VolumeSource).Elem()
	}
	claimed := func() (*Spec, reflect.Value) {
		pv := persistent(v1.PersistentVolumeSource{})
		return NewSpecFromPersistentVolume(pv, false), reflect.ValueOf(&pv.Spec.PersistentVolumeSource).Elem()
	}
	for _, newSpec := range []func() (*Spec, reflect.Value){inline, claimed} {
		_, fields := newSpec()
		for i := range fields.NumField() {
			spec, source := newSpec()
			source.Field(i).Set(reflect.New(source.Field(i).Type().Elem()))
			name, _, _ := strings.Cut(source.Type().Field(i).Tag.Get("json"), ",")
			f(name, spec)
		}
	}
}

// TestEverySourceOfTheAPIIsAKind fails when k8s.io/api has got a source that this package does not know.
func TestEverySourceOfTheAPIIsAKind(t *testing.T) {
	known := map[string]bool{}
	eachSource(func(name string, spec *Spec) {
		known[name] = true
		for _, other := range sourceNames {
			assert.Equal(t, other == name, SpecKind{Source: other}.Matches(spec), "%s, spec with %s", other, name)
		}
	})
	assert.Len(t, known, int(sourceCount))
	for _, name := range sourceNames {
		assert.True(t, known[name], name)
	}
}

func TestSpecKindMatches(t *testing.T) {
	csi, flex := csiVolume("ram.example.com"), flexVolume("example.com/ram")
	persistentCSI := NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{
		CSI: &v1.CSIPersistentVolumeSource{Driver: "ram.example.com"}}), false)
	persistentFlex := NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{
		FlexVolume: &v1.FlexPersistentVolumeSource{Driver: "example.com/ram"}}), false)
	for _, kind := range []SpecKind{{Source: "csi"}, {Source: "csi", Driver: "ram.example.com"}} {
		assert.True(t, kind.Matches(csi), kind)
		assert.True(t, kind.Matches(persistentCSI), kind)
		assert.False(t, kind.Matches(flex), kind)
		assert.False(t, kind.Matches(persistentFlex), kind)
	}
	for _, kind := range []SpecKind{{Source: "flexVolume"}, {Source: "flexVolume", Driver: "example.com/ram"}} {
		assert.True(t, kind.Matches(flex), kind)
		assert.True(t, kind.Matches(persistentFlex), kind)
		assert.False(t, kind.Matches(csi), kind)
		assert.False(t, kind.Matches(persistentCSI), kind)
	}
	for _, spec := range []*Spec{csi, persistentCSI, flex, persistentFlex} {
		for _, source := range []string{"csi", "flexVolume"} {
			right := SpecKind{Source: source}.Matches(spec)
			assert.Equal(t, right && spec.Volume != nil, SpecKind{Source: source, Scope: PodScope}.Matches(spec))
			assert.Equal(t, right && spec.PersistentVolume != nil, SpecKind{Source: source, Scope: PersistentScope}.Matches(spec))
		}
	}
	for _, kind := range []SpecKind{
		{}, {Source: "CSI"}, {Source: "csi", Driver: "disk.example.com"}, {Source: "csi", Driver: "example.com/ram"},
		{Source: "flexVolume", Driver: "ram.example.com"}, {Source: "nfs", Driver: "ram.example.com"},
	} {
		for _, spec := range []*Spec{nil, {}, csi, flex, persistentCSI, persistentFlex} {
			assert.False(t, kind.Matches(spec), kind)
		}
	}
}

func TestDriverKinds(t *testing.T) {
	assert.Equal(t, []SpecKind{{Source: "csi", Driver: "ram.example.com"}, {Source: "flexVolume", Driver: "example.com/ram"}},
		DriverKinds("example.com/ram"))
	assert.Equal(t, []SpecKind{{Source: "flexVolume", Driver: "example.com/ram.disk"}}, DriverKinds("example.com/ram.disk"),
		"driver ram.disk.example.com means plugin disk.example.com/ram")
	assert.Equal(t, "csi ram.example.com", DriverKinds("example.com/ram")[0].String())
	assert.Equal(t, "nfs", SpecKind{Source: "nfs"}.String())
	assert.Equal(t, "nfs of a pod", SpecKind{Source: "nfs", Scope: PodScope}.String())
}

// TestHasDriverSaysWhatDriverSays compares the two for names that are nearly each other's.
func TestHasDriverSaysWhatDriverSays(t *testing.T) {
	names := []string{
		"example.com/ram", "ram.example.com", "example.com/ra", "example.com/ramm", "xample.com/ram", "example.com", "nodot",
		"example.com/ram.disk", "ram.disk.example.com", "disk.example.com/ram", "", "/", ".", "example.comram",
	}
	for _, driver := range names {
		for _, spec := range []*Spec{
			csiVolume(driver), flexVolume(driver),
			NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver}}), false),
			NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{Driver: driver}}), false),
		} {
			d, _ := spec.Driver()
			for _, name := range names {
				assert.Equal(t, d.PluginName == name, spec.HasDriver(name), "%v, plugin %q", d, name)
			}
		}
	}
	for _, spec := range []*Spec{nil, {}, NewSpecFromVolume(nfsVolume("data"))} {
		assert.False(t, spec.HasDriver(""))
	}
}

// TestEverySourceFindsItsPlugin registers a plugin for each source, and looks each up.
func TestEverySourceFindsItsPlugin(t *testing.T) {
	var plugins []VolumePlugin
	for i, source := range sourceNames {
		plugins = append(plugins, newDeclaring(fmt.Sprintf("example.com/p%d", i), always, SpecKind{Source: source}))
	}
	m := registry(t, plugins...)
	eachSource(func(name string, spec *Spec) {
		plugin, err := m.FindPluginBySpec(spec)
		if assert.NoError(t, err, name) {
			declarer, ok := plugin.(SpecKindDeclarer)
			assert.True(t, ok)
			assert.Equal(t, []SpecKind{{Source: name}}, declarer.SpecKinds())
		}
	})
}

func TestAPluginThatDeclaresIsNotAsked(t *testing.T) {
	ram := newDeclaring("example.com/ram", always, DriverKinds("example.com/ram")...)
	disk := newDeclaring("example.com/disk", always, DriverKinds("example.com/disk")...)
	files := newDeclaring("example.com/files", always, SpecKind{Source: "nfs"}, SpecKind{Source: "local"})
	m := registry(t, ram, disk, files)

	for spec, want := range map[*Spec]*declaring{
		csiVolume("ram.example.com"):         ram,
		flexVolume("example.com/ram"):        ram,
		csiVolume("disk.example.com"):        disk,
		NewSpecFromVolume(nfsVolume("data")): files,
		NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{}}), false): files,
	} {
		plugin, err := m.FindPluginBySpec(spec)
		require.NoError(t, err)
		assert.Same(t, want, plugin)
		assert.Zero(t, ram.asked+disk.asked+files.asked)
	}
}

func TestAScopeNarrowsADeclaredKind(t *testing.T) {
	m := registry(t,
		newDeclaring("example.com/claims", always, SpecKind{Source: "nfs", Scope: PersistentScope}),
		newDeclaring("example.com/disks", always, SpecKind{Source: "csi", Driver: "disk.example.com", Scope: PersistentScope}),
		newDeclaring("example.com/own", always, SpecKind{Source: "nfs", Scope: PodScope}))
	for spec, want := range map[*Spec]string{
		NewSpecFromVolume(nfsVolume("data")): "example.com/own",
		NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}}), false): "example.com/claims",
	} {
		plugin, err := m.FindPluginBySpec(spec)
		require.NoError(t, err)
		assert.Equal(t, want, plugin.GetPluginName())
	}
	_, err := m.FindPluginBySpec(csiVolume("disk.example.com"))
	require.ErrorIs(t, err, ErrNoPlugin)
	require.ErrorContains(t, err, "example.com/disks (it declares csi disk.example.com of a PersistentVolume)")
}

// explainingDeclaring says why it declines specs of the kind that it declares.
type explainingDeclaring struct{ declaring }

func (p *explainingDeclaring) ExplainSupport(*Spec) error { return p.declines }

func TestLookUpSaysWhatTheOthersDeclare(t *testing.T) {
	never := func(*Spec) bool { return false }
	asked := &explaining{plain{name: "example.com/asked", declines: errors.New("the server is missing")}}
	silent := &explainingDeclaring{*newDeclaring("example.com/silent", never, DriverKinds("example.com/silent")...)}
	silent.declines = errors.New("must not be asked")
	m := registry(t, asked, silent, &plain{name: "example.com/plain"})

	_, err := m.FindPluginBySpec(NewSpecFromVolume(nfsVolume("data")))
	require.ErrorIs(t, err, ErrNoPlugin)
	require.EqualError(t, err, `no volume plugin matched: volume "data" (nfs): registered plugins: example.com/asked (the server is missing), `+
		`example.com/plain, example.com/silent (it declares csi silent.example.com, flexVolume example.com/silent)`)
	assert.Zero(t, silent.asked)
}

func TestTwoPluginsForOneSpecAreFoundOut(t *testing.T) {
	nfs := SpecKind{Source: "nfs"}
	csi := SpecKind{Source: "csi"}
	ram := SpecKind{Source: "csi", Driver: "ram.example.com"}
	two := nfsVolume("data")
	two.CSI = &v1.CSIVolumeSource{Driver: "ram.example.com"}
	for name, tc := range map[string]struct {
		a, b VolumePlugin
		spec *Spec
	}{
		"declared and declared": {newDeclaring("example.com/a", always, nfs), newDeclaring("example.com/b", always, nfs),
			NewSpecFromVolume(nfsVolume("data"))},
		"declared and a predicate": {newDeclaring("example.com/a", always, nfs), &plain{name: "example.com/b", serves: servesNFS},
			NewSpecFromVolume(nfsVolume("data"))},
		"nothing declared": {newDeclaring("example.com/a", always), newDeclaring("example.com/b", servesNFS),
			NewSpecFromVolume(nfsVolume("data"))},
		"every driver and one": {newDeclaring("example.com/a", always, csi), newDeclaring("example.com/b", always, ram),
			csiVolume("ram.example.com")},
		"two sources": {newDeclaring("example.com/a", always, ram), newDeclaring("example.com/b", always, nfs),
			NewSpecFromVolume(two)},
		"two sources and a predicate": {newDeclaring("example.com/a", always, ram), &plain{name: "example.com/b", serves: servesNFS},
			NewSpecFromVolume(two)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, plugins := range [][]VolumePlugin{{tc.a, tc.b}, {tc.b, tc.a}} {
				_, err := registry(t, plugins...).FindPluginBySpec(tc.spec)
				require.ErrorIs(t, err, ErrMultiplePlugins)
				require.NotErrorIs(t, err, ErrNoPlugin)
				assert.Equal(t, []string{"example.com/a", "example.com/b"}, lookupError(t, err).Matched)
			}
		})
	}
}

// TestAPluginOfSeveralMatchingKindsIsOne: it is found, and not taken for two.
func TestAPluginOfSeveralMatchingKindsIsOne(t *testing.T) {
	spec := nfsVolume("data")
	spec.CSI = &v1.CSIVolumeSource{Driver: "ram.example.com"}
	for name, kinds := range map[string][]SpecKind{
		"two sources":               {{Source: "nfs"}, {Source: "csi"}},
		"a source and its driver":   {{Source: "csi", Driver: "ram.example.com"}, {Source: "csi"}},
		"the driver after a source": {{Source: "csi"}, {Source: "csi", Driver: "ram.example.com"}},
		"overlapping scopes": {{Source: "csi", Driver: "ram.example.com"}, {Source: "csi", Scope: PodScope},
			{Source: "csi", Driver: "ram.example.com", Scope: PodScope}},
		"twice":          {{Source: "csi"}, {Source: "csi"}},
		"a driver twice": {{Source: "csi", Driver: "ram.example.com"}, {Source: "csi", Driver: "ram.example.com"}},
	} {
		for _, spec := range []*Spec{NewSpecFromVolume(spec), csiVolume("ram.example.com")} {
			_, err := registry(t, newDeclaring("example.com/a", always, kinds...)).FindPluginBySpec(spec)
			require.NoError(t, err, name)
		}
	}
}

func TestWrongDeclarationsAreRefused(t *testing.T) {
	for want, kind := range map[string]SpecKind{
		`spec kind "NFS": there is no source of that name`:                {Source: "NFS"},
		`spec kind "csi": there is no scope 9`:                            {Source: "csi", Scope: 9},
		`spec kind "": there is no source of that name`:                   {},
		`spec kind "nfs a.b": only csi and flexVolume have drivers: leav`: {Source: "nfs", Driver: "a.b"},
	} {
		m := NewVolumePluginMgr(testHost(t))
		err := m.InitPlugins(t.Context(), newDeclaring("example.com/a", always, SpecKind{Source: "nfs"}, kind),
			newDeclaring("example.com/b", always, SpecKind{Source: "nfs"}))
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `"example.com/a" (*volume.declaring)`)
		assert.Equal(t, []string{"example.com/b"}, m.PluginNames())
	}
}

func TestKindsAreAskedOnceAndKept(t *testing.T) {
	kinds, asked := []SpecKind{{Source: "nfs"}}, 0
	p := newDeclaring("example.com/a", always)
	p.kinds = func() []SpecKind { asked++; return kinds }
	m := registry(t, p)
	kinds[0].Source = "hostPath"
	require.NoError(t, m.InitPlugins(t.Context(), &plain{name: "example.com/later"}))

	plugin, err := m.FindPluginBySpec(NewSpecFromVolume(nfsVolume("data")))
	require.NoError(t, err)
	assert.Same(t, p, plugin)
	assert.Equal(t, 1, asked)
}

func TestPanicsOfAPluginThatDeclares(t *testing.T) {
	m := NewVolumePluginMgr(testHost(t))
	p := newDeclaring("example.com/a", always)
	p.kinds = func() []SpecKind { panic("no idea") }
	require.ErrorContains(t, m.InitPlugins(t.Context(), p), `volume plugin "example.com/a" panicked in SpecKinds: no idea`)
	assert.Empty(t, m.PluginNames())
}

// TestAPredicateThatHangsHoldsUpOnlyWhoAsked registers and looks up while CanSupport of one plugin does not return; a
// second caller, whose question is answered, is not held up.
func TestAPredicateThatHangsHoldsUpOnlyWhoAsked(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	hangs := func(spec *Spec) bool {
		if spec.Name() == "hangs" {
			close(entered)
			<-release
		}
		return false
	}
	m := registry(t,
		&plain{name: "example.com/hangs", serves: hangs},
		newDeclaring("example.com/works", always, SpecKind{Source: "nfs"}))
	done := make(chan error, 1)
	go func() {
		_, err := m.FindPluginBySpec(NewSpecFromVolume(nfsVolume("hangs")))
		done <- err
	}()
	<-entered

	plugin, err := m.FindPluginBySpec(NewSpecFromVolume(nfsVolume("data")))
	require.NoError(t, err)
	assert.Equal(t, "example.com/works", plugin.GetPluginName())
	_, err = m.FindPluginByName("example.com/hangs")
	require.NoError(t, err)
	require.NoError(t, m.InitPlugins(t.Context(), newDeclaring("example.com/later", always, SpecKind{Source: "nfs"})))
	close(release)
	require.NoError(t, <-done, "it saw the plugins that were there when it began")
}

// TestAPredicateOfAPluginThatDeclaresIsNotCalled: CanSupport is not called.
func TestAPredicateOfAPluginThatDeclaresIsNotCalled(t *testing.T) {
	broken := func(*Spec) bool { panic("must not be asked") }
	m := registry(t,
		newDeclaring("example.com/broken", broken, SpecKind{Source: "nfs"}),
		newDeclaring("example.com/works", broken, SpecKind{Source: "hostPath"}))
	for _, vol := range []*v1.Volume{nfsVolume("data"), {VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{}}}} {
		_, err := m.FindPluginBySpec(NewSpecFromVolume(vol))
		require.NoError(t, err)
	}
}

// ableDeclaring is a plugin with every interface that declares its kinds.
type ableDeclaring struct {
	able
	kinds []SpecKind
}

func (p *ableDeclaring) SpecKinds() []SpecKind { return p.kinds }

// TestLookUpsAllocateNothing asks every look-up by a spec, among thirty plugins, of which one declares nothing.
func TestLookUpsAllocateNothing(t *testing.T) {
	plugins := []VolumePlugin{&plain{name: "example.com/plain", serves: servesHostPath}}
	for i := range 28 {
		name := fmt.Sprintf("example.com/p%d", i)
		plugins = append(plugins, newDeclaring(name, always, DriverKinds(name)...))
	}
	ram := &ableDeclaring{able: *newAble("example.com/ram")}
	ram.kinds = append(DriverKinds("example.com/ram"), SpecKind{Source: "nfs"})
	m := registry(t, append(plugins, ram)...)

	look := map[string]func(*Spec) error{
		"FindPluginBySpec": func(s *Spec) error { _, err := m.FindPluginBySpec(s); return err },
		"Resolve":          func(s *Spec) error { _, err := m.Resolve(s); return err },
		"IsAttachable":     func(s *Spec) error { _, err := m.IsAttachable(s); return err },
		"IsDeviceMountable": func(s *Spec) error {
			_, err := m.IsDeviceMountable(s)
			return err
		},
		"FindPersistentPluginBySpec": func(s *Spec) error { _, err := m.FindPersistentPluginBySpec(s); return err },
		"FindRecyclablePluginBySpec": func(s *Spec) error { _, err := m.FindRecyclablePluginBySpec(s); return err },
		"FindDeletablePluginBySpec":  func(s *Spec) error { _, err := m.FindDeletablePluginBySpec(s); return err },
		"FindAttachablePluginBySpec": func(s *Spec) error { _, err := m.FindAttachablePluginBySpec(s); return err },
		"FindMapperPluginBySpec":     func(s *Spec) error { _, err := m.FindMapperPluginBySpec(s); return err },
		"FindExpandablePluginBySpec": func(s *Spec) error { _, err := m.FindExpandablePluginBySpec(s); return err },
		"FindDeviceMountablePluginBySpec": func(s *Spec) error {
			_, err := m.FindDeviceMountablePluginBySpec(s)
			return err
		},
		"FindNodeExpandablePluginBySpec": func(s *Spec) error {
			_, err := m.FindNodeExpandablePluginBySpec(s)
			return err
		},
	}
	for name, f := range look {
		for _, spec := range []*Spec{
			csiVolume("ram.example.com"), flexVolume("example.com/ram"), NewSpecFromVolume(nfsVolume("data")),
			NewSpecFromPersistentVolume(persistent(v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}}), false),
		} {
			var err error
			allocated := testing.AllocsPerRun(100, func() { err = f(spec) })
			require.NoError(t, err, name)
			assert.Zero(t, allocated, name)
		}
	}
	spec := csiVolume("ram.example.com")
	assert.Zero(t, testing.AllocsPerRun(100, func() { _ = spec.HasDriver("example.com/ram") }))
}

package volume

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func lookupError(t *testing.T, err error) *LookupError {
	t.Helper()
	var lookup *LookupError
	require.ErrorAs(t, err, &lookup)
	return lookup
}

func TestFindPluginBySpec(t *testing.T) {
	hostPath := &plain{name: "kubernetes.io/host-path", serves: servesHostPath}
	nfs := &plain{name: "kubernetes.io/nfs", serves: servesNFS}
	m := registry(t, nfs, hostPath)

	plugin, err := m.FindPluginBySpec(NewSpecFromVolume(nfsVolume("data")))
	require.NoError(t, err)
	assert.Same(t, nfs, plugin)

	plugin, err = m.FindPluginByName("kubernetes.io/host-path")
	require.NoError(t, err)
	assert.Same(t, hostPath, plugin)
}

func TestFindPluginBySpecWithTwoSources(t *testing.T) {
	m := registry(t,
		&plain{name: "kubernetes.io/nfs", serves: servesNFS},
		&plain{name: "example.com/other"},
		&plain{name: "kubernetes.io/host-path", serves: servesHostPath})
	vol := nfsVolume("data")
	vol.HostPath = &v1.HostPathVolumeSource{Path: "/srv"}

	_, err := m.FindPluginBySpec(NewSpecFromVolume(vol))
	require.ErrorIs(t, err, ErrMultiplePlugins)
	require.NotErrorIs(t, err, ErrNoPlugin)
	lookup := lookupError(t, err)
	assert.Equal(t, []string{"kubernetes.io/host-path", "kubernetes.io/nfs"}, lookup.Matched)
	assert.Equal(t, `volume "data" (hostPath and nfs)`, lookup.Query)
	require.EqualError(t, err, `multiple volume plugins matched: volume "data" (hostPath and nfs) is served by `+
		`kubernetes.io/host-path, kubernetes.io/nfs: set exactly one source, or register one plugin for it`)

	_, err = m.FindAttachablePluginBySpec(NewSpecFromVolume(vol))
	require.ErrorIs(t, err, ErrMultiplePlugins)
}

func TestFindPluginBySpecSaysWhoWasAskedAndWhy(t *testing.T) {
	m := registry(t,
		&explaining{plain{name: "kubernetes.io/nfs", declines: fmt.Errorf("the server is missing: %w", ErrInfeasible)}},
		&explaining{plain{name: "example.com/silent"}},
		&plain{name: "kubernetes.io/host-path"})
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "ram.example.com", VolumeHandle: "7"}

	_, err := m.FindPluginBySpec(NewSpecFromPersistentVolume(pv, false))
	require.ErrorIs(t, err, ErrNoPlugin)
	require.NotErrorIs(t, err, ErrUnsupported)
	require.NotErrorIs(t, err, ErrInfeasible, "a reason is for people")
	assert.EqualError(t, err, `no volume plugin matched: volume "pv-1" (csi of a PersistentVolume and `+
		`driver of plugin "example.com/ram"): registered plugins: example.com/silent, kubernetes.io/host-path, `+
		`kubernetes.io/nfs (the server is missing: can never be met)`)
}

func TestFindPluginBySpecWithoutAnswer(t *testing.T) {
	_, err := registry(t).FindPluginBySpec(NewSpecFromVolume(&v1.Volume{Name: "data"}))
	require.ErrorIs(t, err, ErrNoPlugin)
	require.EqualError(t, err, `no volume plugin matched: volume "data" (no source): no plugin is registered`)

	_, err = registry(t).FindPluginBySpec(&Spec{})
	require.ErrorIs(t, err, ErrNoPlugin)
	assert.ErrorContains(t, err, `volume "" (no source)`)
}

func TestFindPluginByNameThatIsNotThere(t *testing.T) {
	m := registry(t, &plain{name: "example.com/b"}, &plain{name: "example.com/a"})
	for _, name := range []string{"example.com/c", "", "example.com~a"} {
		_, err := m.FindPluginByName(name)
		require.ErrorIs(t, err, ErrNoPlugin)
		require.NotErrorIs(t, err, ErrUnsupported)
		assert.EqualError(t, err,
			fmt.Sprintf("no volume plugin matched: plugin name %q: registered plugins: example.com/a, example.com/b", name))
	}
}

func TestPanicOfOnePluginDoesNotHideAnother(t *testing.T) {
	cause := errors.New("nil pointer of mine")
	broken := &plain{name: "example.com/broken", serves: func(*Spec) bool { panic(cause) }}
	good := &plain{name: "kubernetes.io/nfs", serves: servesNFS}
	m := registry(t, broken, good)

	plugin, err := m.FindPluginBySpec(NewSpecFromVolume(nfsVolume("data")))
	require.NoError(t, err)
	assert.Same(t, good, plugin)

	_, err = m.FindPluginBySpec(NewSpecFromVolume(&v1.Volume{Name: "other"}))
	require.ErrorIs(t, err, ErrNoPlugin)
	require.ErrorIs(t, err, cause)
	var panicked *PanicError
	require.ErrorAs(t, err, &panicked)
	assert.Equal(t, "example.com/broken", panicked.Plugin)
	assert.Equal(t, "CanSupport", panicked.Call)
	assert.ErrorContains(t, err, `example.com/broken (volume plugin "example.com/broken" panicked in CanSupport`)
}

// TestPanicsBetweenAnswersHideNoneOfThem: each plugin is asked once, and each panic is that of its plugin.
func TestPanicsBetweenAnswersHideNoneOfThem(t *testing.T) {
	var asked []string
	answer := func(name string, serves func(*Spec) bool) *plain {
		return &plain{name: name, serves: func(s *Spec) bool {
			asked = append(asked, name)
			return serves(s)
		}}
	}
	boom := map[string]error{"example.com/a": errors.New("boom a"), "example.com/c": errors.New("boom c"), "example.com/e": errors.New("boom e")}
	all := []string{"example.com/a", "example.com/b", "example.com/c", "example.com/d", "example.com/e"}
	var plugins []VolumePlugin
	for _, name := range all {
		serves := servesNFS
		if cause := boom[name]; cause != nil {
			serves = func(*Spec) bool { panic(cause) }
		}
		plugins = append(plugins, answer(name, serves))
	}
	m := registry(t, plugins...)

	_, err := m.FindPluginBySpec(NewSpecFromVolume(nfsVolume("data")))
	require.ErrorIs(t, err, ErrMultiplePlugins)
	var lookup *LookupError
	require.ErrorAs(t, err, &lookup)
	assert.Equal(t, []string{"example.com/b", "example.com/d"}, lookup.Matched)
	require.Len(t, lookup.Declined, len(boom))
	for _, d := range lookup.Declined {
		var panicked *PanicError
		require.ErrorAs(t, d.Why, &panicked)
		assert.Equal(t, d.Plugin, panicked.Plugin)
		assert.Equal(t, boom[d.Plugin], panicked.Value)
		assert.Contains(t, string(panicked.Stack), "TestPanicsBetweenAnswersHideNoneOfThem", "where it panicked")
	}
	assert.Equal(t, all, asked)
}

type explainPanics struct{ plain }

func (*explainPanics) ExplainSupport(*Spec) error { panic("no words") }

func TestPanicOfExplainSupport(t *testing.T) {
	m := registry(t, &explainPanics{plain{name: "example.com/a"}})
	_, err := m.FindPluginBySpec(NewSpecFromVolume(&v1.Volume{Name: "data"}))
	require.ErrorIs(t, err, ErrNoPlugin)
	assert.ErrorContains(t, err, "panicked in ExplainSupport: no words")
}

// finder is one look-up of the registry; plugin is nil when it failed.
type finder struct {
	name   string
	needs  Capabilities
	bySpec func(*VolumePluginMgr, *Spec) (any, error)
	byName func(*VolumePluginMgr, string) (any, error)
}

func spec1[T comparable](f func(*VolumePluginMgr, *Spec) (T, error)) func(*VolumePluginMgr, *Spec) (any, error) {
	return func(m *VolumePluginMgr, s *Spec) (any, error) { return orNil(f(m, s)) }
}

func name1[T comparable](f func(*VolumePluginMgr, string) (T, error)) func(*VolumePluginMgr, string) (any, error) {
	return func(m *VolumePluginMgr, s string) (any, error) { return orNil(f(m, s)) }
}

func orNil[T comparable](plugin T, err error) (any, error) {
	var none T
	if plugin == none {
		return nil, err
	}
	return plugin, err
}

func finders() []finder {
	return []finder{
		{"persistent", CapPersistent, spec1((*VolumePluginMgr).FindPersistentPluginBySpec), nil},
		{"recyclable", CapRecycle, spec1((*VolumePluginMgr).FindRecyclablePluginBySpec), nil},
		{"provisionable", CapProvision, nil, name1((*VolumePluginMgr).FindProvisionablePluginByName)},
		{"modifiable", CapModify, spec1((*VolumePluginMgr).FindModifiablePluginBySpec), nil},
		{"cloneable", CapClone, spec1((*VolumePluginMgr).FindCloneablePluginBySpec), nil},
		{"snapshottable", CapSnapshot, spec1((*VolumePluginMgr).FindSnapshottablePluginBySpec),
			name1((*VolumePluginMgr).FindSnapshottablePluginByName)},
		{"snapshot lister", CapListSnapshots, nil, name1((*VolumePluginMgr).FindSnapshotListerByName)},
		{"group snapshottable", CapGroupSnapshot, nil, name1((*VolumePluginMgr).FindGroupSnapshottablePluginByName)},
		{"capacity", CapCapacity, nil, name1((*VolumePluginMgr).FindCapacityPluginByName)},
		{"deletable", CapDelete, spec1((*VolumePluginMgr).FindDeletablePluginBySpec),
			name1((*VolumePluginMgr).FindDeletablePluginByName)},
		{"attachable", CapAttach, spec1((*VolumePluginMgr).FindAttachablePluginBySpec),
			name1((*VolumePluginMgr).FindAttachablePluginByName)},
		{"device-mountable", CapDeviceMount, spec1((*VolumePluginMgr).FindDeviceMountablePluginBySpec),
			name1((*VolumePluginMgr).FindDeviceMountablePluginByName)},
		{"mapper", CapBlock, spec1((*VolumePluginMgr).FindMapperPluginBySpec),
			name1((*VolumePluginMgr).FindMapperPluginByName)},
		{"expandable", CapExpand, spec1((*VolumePluginMgr).FindExpandablePluginBySpec), nil},
		{"node-expandable", CapNodeExpand, spec1((*VolumePluginMgr).FindNodeExpandablePluginBySpec), nil},
		{"attach limits", CapAttachLimits, nil, name1((*VolumePluginMgr).FindAttachLimitPluginByName)},
		{"bulk verifier", CapBulkVerify, nil, name1((*VolumePluginMgr).FindBulkVerifierByName)},
		{"reconstructable", CapReconstruct, nil, name1((*VolumePluginMgr).FindReconstructablePluginByName)},
	}
}

// TestCapableFinders asks each look-up for a plugin that can, for one whose type cannot, for one whose capabilities
// were narrowed, and for nothing.
func TestCapableFinders(t *testing.T) {
	const name = "example.com/a"
	spec := NewSpecFromVolume(nfsVolume("data"))
	for _, f := range finders() {
		t.Run(f.name, func(t *testing.T) {
			can := newAble(name)
			narrowed := newAble(name)
			narrowed.capabilities &^= f.needs
			cannot := &plain{name: name, serves: always}

			for what, ask := range map[string]func(*VolumePluginMgr) (any, error){
				"by spec": func(m *VolumePluginMgr) (any, error) { return f.bySpec(m, spec) },
				"by name": func(m *VolumePluginMgr) (any, error) { return f.byName(m, name) },
			} {
				if (what == "by spec" && f.bySpec == nil) || (what == "by name" && f.byName == nil) {
					continue
				}
				got, err := ask(registry(t, can))
				require.NoError(t, err, what)
				assert.Same(t, can, got, what)

				for _, plugin := range []VolumePlugin{narrowed, cannot} {
					got, err = ask(registry(t, plugin))
					assert.Nil(t, got, what)
					require.ErrorIs(t, err, ErrNoPlugin, what)
					require.ErrorIs(t, err, ErrUnsupported, what)
					lookup := lookupError(t, err)
					assert.Equal(t, []string{name}, lookup.Matched)
					assert.Equal(t, f.needs, lookup.Needs)
					require.ErrorContains(t, err, f.needs.String())
				}

				got, err = ask(registry(t))
				assert.Nil(t, got, what)
				require.ErrorIs(t, err, ErrNoPlugin, what)
				require.NotErrorIs(t, err, ErrUnsupported, what)
			}
			if f.bySpec != nil {
				got, err := f.bySpec(registry(t, can), nil)
				assert.Nil(t, got)
				require.ErrorIs(t, err, ErrInvalid)
				require.ErrorIs(t, err, ErrNoPlugin)
			}
		})
	}
}

func TestFindPluginBySpecNil(t *testing.T) {
	_, err := registry(t).FindPluginBySpec(nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, err, ErrNoPlugin)
}

// TestAttachingNeedsStaging holds that a plugin that must not stage must not attach either.
func TestAttachingNeedsStaging(t *testing.T) {
	p := newAble("example.com/a")
	p.capabilities &^= CapDeviceMount
	_, err := registry(t, p).FindAttachablePluginByName("example.com/a")
	require.ErrorIs(t, err, ErrUnsupported)
}

func TestCanAttachAndCanDeviceMountDecide(t *testing.T) {
	spec := NewSpecFromVolume(nfsVolume("data"))
	cause := errors.New("the driver is not known yet")
	failing := func(*Spec) (bool, error) { return true, cause }
	panicking := func(*Spec) (bool, error) { panic(cause) }

	for name, tc := range map[string]struct {
		attach, mount       func(*Spec) (bool, error)
		attachErr, mountErr error
		unique              v1.UniqueVolumeName
		uniqueErr           error
	}{
		"both":           {attach: yes, mount: yes, unique: "example.com/a/name-of-data"},
		"attach only":    {attach: yes, mount: no, mountErr: ErrUnsupported, unique: "example.com/a/name-of-data"},
		"stage only":     {attach: no, mount: yes, attachErr: ErrUnsupported, unique: "example.com/a/name-of-data"},
		"neither":        {attach: no, mount: no, attachErr: ErrUnsupported, mountErr: ErrUnsupported, unique: "example.com/a/pods/uid/data"},
		"attach fails":   {attach: failing, mount: no, attachErr: cause, mountErr: ErrUnsupported, uniqueErr: cause},
		"stage fails":    {attach: no, mount: failing, attachErr: ErrUnsupported, mountErr: cause, uniqueErr: cause},
		"attach panics":  {attach: panicking, mount: yes, attachErr: cause, uniqueErr: cause},
		"staging panics": {attach: no, mount: panicking, attachErr: ErrUnsupported, mountErr: cause, uniqueErr: cause},
	} {
		t.Run(name, func(t *testing.T) {
			p := newAble("example.com/a")
			p.canAttach, p.canMount = tc.attach, tc.mount
			m := registry(t, p)

			attachable, err := m.FindAttachablePluginBySpec(spec)
			require.ErrorIs(t, err, tc.attachErr)
			assert.Equal(t, tc.attachErr == nil, attachable != nil)
			is, err := m.IsAttachable(spec)
			assert.Equal(t, tc.attachErr == nil, is)
			assert.Equal(t, tc.attachErr == cause, err != nil) //nolint:errorlint // Which of the table's errors it is.

			mountable, err := m.FindDeviceMountablePluginBySpec(spec)
			require.ErrorIs(t, err, tc.mountErr)
			assert.Equal(t, tc.mountErr == nil, mountable != nil)
			is, err = m.IsDeviceMountable(spec)
			assert.Equal(t, tc.mountErr == nil, is)
			assert.Equal(t, tc.mountErr == cause, err != nil) //nolint:errorlint // Which of the table's errors it is.

			unique, err := m.UniqueVolumeName("uid", spec)
			require.ErrorIs(t, err, tc.uniqueErr)
			assert.Equal(t, tc.unique, unique)
		})
	}
}

// TestErrorOfCanAttachIsNotALookUpThatFailed: a plugin that cannot say is not a plugin that does not attach.
func TestErrorOfCanAttachIsNotALookUpThatFailed(t *testing.T) {
	p := newAble("example.com/a")
	p.canAttach = func(*Spec) (bool, error) { return false, fmt.Errorf("cannot say: %w", ErrUnsupported) }
	m := registry(t, p)
	spec := NewSpecFromVolume(nfsVolume("data"))

	_, err := m.FindAttachablePluginBySpec(spec)
	require.ErrorIs(t, err, ErrUnsupported)
	require.NotErrorIs(t, err, ErrNoPlugin)
	require.EqualError(t, err, `volume plugin "example.com/a": CanAttach of volume "data" (nfs): cannot say: not supported`)
	_, err = m.IsAttachable(spec)
	require.Error(t, err, "the answer is not no")
}

func TestQuestionsToOptionalInterfaces(t *testing.T) {
	spec := NewSpecFromVolume(nfsVolume("data"))
	for name, tc := range map[string]struct {
		plugin VolumePlugin
		want   bool
	}{
		"can":    {newAble("example.com/a"), true},
		"cannot": {&plain{name: "example.com/a", serves: always}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := registry(t, tc.plugin)
			assert.Equal(t, tc.want, m.SupportsMountOption("example.com/a"))
			r, err := m.Resolve(spec)
			require.NoError(t, err)
			assert.Equal(t, tc.want, r.RequiresRemount)
			assert.Equal(t, tc.want, r.SELinuxMount)
		})
	}
	m := registry(t)
	assert.False(t, m.SupportsMountOption("example.com/a"))
	for _, ask := range []func(*Spec) (bool, error){
		m.IsAttachable, m.IsDeviceMountable,
		func(spec *Spec) (bool, error) { r, err := m.Resolve(spec); return r.RequiresRemount, err },
	} {
		_, err := ask(spec)
		require.ErrorIs(t, err, ErrNoPlugin, "a plugin that is not there is not a no")
		_, err = ask(nil)
		require.ErrorIs(t, err, ErrInvalid)
	}
}

func TestLookupErrorSurvivesWrapping(t *testing.T) {
	_, err := registry(t, &plain{name: "example.com/a", serves: always}).
		FindAttachablePluginBySpec(NewSpecFromVolume(nfsVolume("data")))
	err = &Error{Op: "volume_attach", Err: fmt.Errorf("outer: %w", err)}
	require.ErrorIs(t, err, ErrNoPlugin)
	require.ErrorIs(t, err, ErrUnsupported)
	assert.Equal(t, CapAttach, lookupError(t, err).Needs)
}

// BenchmarkFindPluginBySpec shows what a look-up among sixteen plugins costs.
func BenchmarkFindPluginBySpec(b *testing.B) {
	var plugins []VolumePlugin
	for i := range 15 {
		plugins = append(plugins, &plain{name: fmt.Sprintf("example.com/p%d", i), serves: servesHostPath})
	}
	m := registry(b, append(plugins, &plain{name: "kubernetes.io/nfs", serves: servesNFS})...)
	spec := NewSpecFromVolume(nfsVolume("data"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.FindPluginBySpec(spec); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCanReuse is no where the plugin says no, where it cannot say, and where it asks for remounts.
func TestCanReuse(t *testing.T) {
	spec := NewSpecFromVolume(nfsVolume("data"))
	for name, tc := range map[string]struct {
		change func(*able)
		want   bool
	}{
		"says yes":     {func(*able) {}, true},
		"says no":      {func(p *able) { p.reuse = false }, false},
		"is remounted": {func(p *able) { p.remount = true }, false},
		"cannot":       {func(p *able) { p.capabilities &^= CapReuse }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newAble("example.com/a")
			p.reuse, p.remount = true, false
			tc.change(p)
			got, err := registry(t, p).CanReuse(spec)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
	_, err := registry(t).CanReuse(spec)
	require.ErrorIs(t, err, ErrNoPlugin)
}

// TestIsPublic is whether records hold all of a spec.
func TestIsPublic(t *testing.T) {
	csi := func(attributes map[string]string) *Spec {
		return NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "a.example.com", VolumeAttributes: attributes}}})
	}
	pv := &v1.PersistentVolume{}
	pv.Spec.NFS, pv.Spec.MountOptions = &v1.NFSVolumeSource{Server: "s"}, []string{"ro", "vers=4.2"}
	disk := &v1.PersistentVolume{}
	disk.Spec.AzureDisk = &v1.AzureDiskVolumeSource{DataDiskURI: "https://me:secret@example.com"}
	assert.True(t, csi(nil).IsPublic(nil))
	assert.True(t, csi(map[string]string{"share": "a"}).IsPublic([]string{"share"}))
	assert.False(t, csi(map[string]string{"share": "a", "key": "***"}).IsPublic([]string{"share"}))
	assert.True(t, NewSpecFromPersistentVolume(pv, false).IsPublic([]string{"ro", "vers"}))
	assert.False(t, NewSpecFromPersistentVolume(pv, false).IsPublic([]string{"ro"}))
	assert.False(t, NewSpecFromPersistentVolume(disk, false).IsPublic(nil))
	assert.False(t, NewSpecFromVolume(&v1.Volume{VolumeSource: v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{Repository: "https://me@example.com"}}}).IsPublic(nil))
}

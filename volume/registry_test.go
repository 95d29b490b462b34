package volume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

func testHost(t testing.TB) *Host {
	t.Helper()
	host, err := NewHost(HostOptions{RootDir: "/var/lib/example", NodeName: "node-1"})
	require.NoError(t, err)
	return host
}

func registry(t testing.TB, plugins ...VolumePlugin) *VolumePluginMgr {
	t.Helper()
	m := NewVolumePluginMgr(testHost(t))
	require.NoError(t, m.InitPlugins(t.Context(), plugins...))
	return m
}

func TestInitPluginsRegistersAndAddsLater(t *testing.T) {
	host := testHost(t)
	m := NewVolumePluginMgr(host)
	assert.Same(t, host, m.Host())
	assert.Empty(t, m.PluginNames())

	var got VolumeHost
	b := &plain{name: "example.com/b", init: func(_ context.Context, h VolumeHost) error { got = h; return nil }}
	require.NoError(t, m.InitPlugins(t.Context(), b))
	assert.Same(t, host, got)

	a := newAble("example.com/a")
	require.NoError(t, m.InitPlugins(t.Context(), a))
	assert.Equal(t, []string{"example.com/a", "example.com/b"}, m.PluginNames())
	assert.Equal(t, AllCapabilities, m.Capabilities("example.com/a"))
	assert.Zero(t, m.Capabilities("example.com/b"))
	assert.Zero(t, m.Capabilities("example.com/unknown"))
}

func TestInitPluginsKeepsTheGoodAndReportsAllTheBad(t *testing.T) {
	cause := errors.New("no such helper")
	m := NewVolumePluginMgr(testHost(t))
	err := m.InitPlugins(t.Context(),
		nil,
		&plain{name: "no-slash"},
		&plain{name: "example.com/failing", init: func(context.Context, VolumeHost) error { return cause }},
		&plain{name: "example.com/good"},
		newAble("example.com/good"),
		&plain{name: "example.com/panicking", init: func(context.Context, VolumeHost) error { panic("out of ideas") }},
	)
	require.Error(t, err)
	assert.Equal(t, []string{"example.com/good"}, m.PluginNames())
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, err, cause)

	var panicked *PanicError
	require.ErrorAs(t, err, &panicked)
	assert.Equal(t, "example.com/panicking", panicked.Plugin)
	assert.Equal(t, "Init", panicked.Call)
	assert.Equal(t, "out of ideas", panicked.Value)
	assert.Contains(t, string(panicked.Stack), "TestInitPluginsKeepsTheGoodAndReportsAllTheBad")

	for _, want := range []string{"no-slash", "example.com/failing", "*volume.able", "*volume.plain", "out of ideas"} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, m.InitPlugins(t.Context(), &plain{name: "example.com/failing"}), "what failed may be tried again")
}

func TestInitPluginsDuplicateOfAnEarlierCall(t *testing.T) {
	m := registry(t, &plain{name: "example.com/a"})
	err := m.InitPlugins(t.Context(), newAble("example.com/a"))
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "*volume.able is refused because *volume.plain has that name")
	assert.Zero(t, m.Capabilities("example.com/a"), "the first one stays")
}

func TestInitPluginsAfterItsContextEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m := NewVolumePluginMgr(testHost(t))
	err := m.InitPlugins(ctx,
		&plain{name: "example.com/a", init: func(context.Context, VolumeHost) error { cancel(); return nil }},
		&plain{name: "example.com/b"})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "example.com/b")
	assert.Equal(t, []string{"example.com/a"}, m.PluginNames())
}

func TestInitPluginsWithoutHost(t *testing.T) {
	require.ErrorIs(t, NewVolumePluginMgr(nil).InitPlugins(t.Context()), ErrInvalid)
}

// TestInitHoldsNoLock has a plugin use the registry, and initialise another plugin, from its Init.
func TestInitHoldsNoLock(t *testing.T) {
	m := NewVolumePluginMgr(testHost(t))
	outer := &plain{name: "example.com/outer", init: func(ctx context.Context, _ VolumeHost) error {
		_, err := m.FindPluginByName("example.com/outer")
		require.ErrorIs(t, err, ErrNoPlugin, "not visible before Init has succeeded")
		err = m.InitPlugins(ctx, &plain{name: "example.com/outer"})
		require.ErrorIs(t, err, ErrInvalid, "its name is taken already")
		return m.InitPlugins(ctx, &plain{name: "example.com/inner"})
	}}
	require.NoError(t, m.InitPlugins(t.Context(), outer))
	assert.Equal(t, []string{"example.com/inner", "example.com/outer"}, m.PluginNames())
}

type namePanics struct{ plain }

func (*namePanics) GetPluginName() string { panic("no name") }

type capabilitiesPanic struct{ plain }

func (*capabilitiesPanic) Capabilities() Capabilities { panic("no idea") }

func TestInitPluginsCatchesPanicsOutsideInit(t *testing.T) {
	m := NewVolumePluginMgr(testHost(t))
	err := m.InitPlugins(t.Context(), &namePanics{}, &capabilitiesPanic{plain{name: "example.com/a"}})
	require.ErrorContains(t, err, `volume plugin "*volume.namePanics" panicked in GetPluginName: no name`)
	require.ErrorContains(t, err, `volume plugin "example.com/a" panicked in Capabilities: no idea`)
	assert.Empty(t, m.PluginNames())
}

func TestPanicErrorUnwrapsItsValue(t *testing.T) {
	cause := errors.New("cause")
	require.ErrorIs(t, guard("a/b", "SetUp", func() { panic(cause) }), cause)
	require.NotErrorIs(t, guard("a/b", "SetUp", func() { panic("text") }), cause)
	require.NoError(t, guard("a/b", "SetUp", func() {}))
	assert.EqualError(t, guard("", "statfs", func() { panic(1) }), "panic in statfs: 1")
}

func TestValidatePluginName(t *testing.T) {
	for name, ok := range map[string]bool{
		"kubernetes.io/host-path":               true,
		"volumekit.io/loop-block":               true,
		"a/b":                                   true,
		"example.com/A_b.c-D":                   true,
		"x/" + strings.Repeat("n", 63):          true,
		"":                                      false,
		"example.com":                           false,
		"/ram":                                  false,
		"example.com/":                          false,
		"example.com/a/b":                       false,
		"example.com//b":                        false,
		"Example.com/a":                         false,
		"example..com/a":                        false,
		"example.com/-a":                        false,
		"example.com/a~b":                       false,
		"exa~mple.com/a":                        false,
		"example.com/..":                        false,
		"../a":                                  false,
		"example.com/a\n":                       false,
		"x/" + strings.Repeat("n", 64):          false,
		strings.Repeat("d", 254) + "/a":         false,
		"example.com/a b":                       false,
		"https://example.com/a":                 false,
		"example.com/ä":                         false,
		"example.com/a\x00":                     false,
		"kubernetes.io~host-path":               false,
		strings.Repeat("d.", 126) + "d/" + "a":  true,
		strings.Repeat("d.", 126) + "dd/" + "a": false,
		"example.com/" + strings.Repeat("n", 62) + "-": false,
	} {
		err := ValidatePluginName(name)
		if ok {
			require.NoError(t, err, "%q", name)
			continue
		}
		assert.ErrorIs(t, err, ErrInvalid, "%q", name)
	}
}

// TestRegistryConcurrently looks plugins up while others are added; the race detector watches.
func TestRegistryConcurrently(t *testing.T) {
	const plugins, readers = 32, 8
	m := registry(t, &plain{name: "example.com/nfs", serves: servesNFS})
	spec := NewSpecFromVolume(nfsVolume("data"))
	done := make(chan struct{})

	var readersDone, writersDone sync.WaitGroup
	for range readers {
		readersDone.Go(func() {
			for {
				plugin, err := m.FindPluginBySpec(spec)
				if assert.NoError(t, err) {
					assert.Equal(t, "example.com/nfs", plugin.GetPluginName())
				}
				_, err = m.FindAttachablePluginBySpec(spec)
				assert.ErrorIs(t, err, ErrUnsupported)
				assert.IsIncreasing(t, append([]string{""}, m.PluginNames()...))
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range plugins {
		for range 2 { // one of the two is refused
			writersDone.Go(func() {
				_ = m.InitPlugins(t.Context(), &plain{name: fmt.Sprintf("example.com/p%d", i)})
			})
		}
	}
	writersDone.Wait()
	close(done)
	readersDone.Wait()
	assert.Len(t, m.PluginNames(), plugins+1)
}

func TestConcurrentDuplicatesInitOnce(t *testing.T) {
	m := NewVolumePluginMgr(testHost(t))
	var mu sync.Mutex
	inits, refused := 0, 0
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			err := m.InitPlugins(t.Context(), &plain{name: "example.com/a", init: func(context.Context, VolumeHost) error {
				mu.Lock()
				defer mu.Unlock()
				inits++
				return nil
			}})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				refused++
				assert.ErrorIs(t, err, ErrInvalid)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 1, inits)
	assert.Equal(t, 15, refused)
}

func nfsVolume(name string) *v1.Volume {
	return &v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
		NFS: &v1.NFSVolumeSource{Server: "nfs.example.com", Path: "/export"},
	}}
}

package mount_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestTheModelDoesAsTheKernel makes the same random mounts, binds, changes of propagation and unmounts with the kernel and
// with fake.Mounter, and compares the tables after each.
func TestTheModelDoesAsTheKernel(t *testing.T) {
	mounttest.RequireMounts(t)
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			kernel := twin{mount.New(mount.Options{}), t.TempDir() + "/base"}
			model := twin{fake.NewMounter(fake.MounterOptions{}), "/base"}
			t.Cleanup(func() { kernel.clear(t) })
			random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // The same every time.
			base := step{Request: mount.Request{FSType: "tmpfs"}}
			require.NoError(t, base.on(t.Context(), kernel))
			require.NoError(t, base.on(t.Context(), model))
			for i := 0; i < 30 && len(kernel.chart(t)) < 60; i++ {
				s := randomStep(random, model.paths(t))
				got, want := s.on(t.Context(), model), s.on(t.Context(), kernel)
				require.Equal(t, want == nil, got == nil, "%+v: kernel: %v; model: %v", s, want, got)
				require.Equal(t, errors.Is(want, unix.EBUSY), errors.Is(got, unix.EBUSY), "%+v: kernel: %v; model: %v", s, want, got)
				require.Equal(t, kernel.chart(t), model.chart(t), "%+v", s)
			}
		})
	}
}

// twin is a mounter and the directory in which it mounts.
type twin struct {
	mount.Interface

	root string
}

// step is a Mount, or an Unmount of its target. Its paths are below the root of a twin.
type step struct {
	mount.Request

	unmount bool
	options mount.UnmountOptions
}

func (s step) on(ctx context.Context, w twin) error {
	s.Target = w.root + s.Target
	if s.unmount {
		return w.Unmount(ctx, s.Target, s.options)
	}
	if strings.HasPrefix(s.Source, "/") {
		s.Source = w.root + s.Source
	}
	return w.Mount(ctx, s.Request)
}

// randomStep does something with one of the paths, most of which are mount points, or with one near by.
func randomStep(random *rand.Rand, paths []string) step {
	pick := func(words ...string) string { return words[random.IntN(len(words))] }
	near := func() string { return pick(paths...) + pick("/s", "/t", "/s/s", "/s/t") }
	kind := pick("shared", "shared", "shared", "slave", "private")
	switch random.IntN(8) {
	case 0, 1:
		name := pick("one", "two", "three")
		return step{Request: mount.Request{Source: name, Target: near(), FSType: "tmpfs", Options: []string{kind}}}
	case 2, 3:
		bind := pick("bind", "rbind")
		return step{Request: mount.Request{Source: pick(paths...) + pick("", "/s"), Target: near(), Options: []string{bind, kind}}}
	case 4:
		again := pick("", "r") + pick("shared", "slave", "private", "unbindable")
		return step{Request: mount.Request{Target: pick(paths...), Options: []string{"remount", again}}}
	default:
		lazy := mount.UnmountOptions{Lazy: random.IntN(4) == 0}
		return step{Request: mount.Request{Target: pick(paths[1:]...)}, unmount: true, options: lazy}
	}
}

// own are the mounts of the twin.
func (w twin) own(t *testing.T) []mount.MountPoint {
	t.Helper()
	table, err := w.List(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	return slices.DeleteFunc(slices.Clone(table), func(m mount.MountPoint) bool {
		return m.Path != w.root && !strings.HasPrefix(m.Path, w.root+"/")
	})
}

// paths are those of the mounts, that of the root first, and one where nothing is.
func (w twin) paths(t *testing.T) (paths []string) {
	t.Helper()
	for _, m := range w.own(t) {
		paths = append(paths, strings.TrimPrefix(m.Path, w.root))
	}
	return append(paths, "/a")
}

// chart says the same of two tables that differ in numbers and order only: each mount by the way to it, each peer group by
// the mounts in it.
func (w twin) chart(t *testing.T) []string {
	t.Helper()
	own := w.own(t)
	var way func(id uint64) string
	way = func(id uint64) string {
		i := slices.IndexFunc(own, func(m mount.MountPoint) bool { return m.ID == id })
		if i < 0 {
			return ""
		}
		return fmt.Sprintf("%s > %s (%s%s)", way(own[i].ParentID), strings.TrimPrefix(own[i].Path, w.root), own[i].Source, own[i].Root)
	}
	var lines []string
	groups := map[string][]string{}
	for _, m := range own {
		lines = append(lines, way(m.ID))
		for _, field := range m.Propagation {
			groups[field] = append(groups[field], way(m.ID))
		}
	}
	for field, members := range groups {
		word, number, _ := strings.Cut(field, ":")
		of := groups["shared:"+number]
		slices.Sort(members)
		slices.Sort(of)
		lines = append(lines, fmt.Sprint(word, members, " of ", of))
	}
	slices.Sort(lines)
	return lines
}

// clear takes off what is left.
func (w twin) clear(t *testing.T) {
	t.Helper()
	for _, m := range slices.Backward(w.own(t)) {
		err := w.Unmount(context.WithoutCancel(t.Context()), m.Path, mount.UnmountOptions{Lazy: true})
		assert.True(t, err == nil || errors.Is(err, mount.ErrNotMounted), "%v", err)
	}
}

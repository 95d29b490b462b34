package atomicwriter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount/mounttest"
)

const staleSet = "..2020_01_01_00_00_00.1"

// planted is what a workload may put at a name.
var planted = map[string]func(t *testing.T, at, canary string){
	"link to a directory": func(t *testing.T, at, canary string) { require.NoError(t, os.Symlink(canary, at)) },
	"relative link": func(t *testing.T, at, canary string) {
		require.NoError(t, os.Symlink("../../../../../../../.."+canary+"/dir", at))
	},
	"link to a file":  func(t *testing.T, at, canary string) { require.NoError(t, os.Symlink(canary+"/etc/passwd", at)) },
	"link to itself":  func(t *testing.T, at, _ string) { require.NoError(t, os.Symlink(filepath.Base(at), at)) },
	"hard link":       func(t *testing.T, at, canary string) { require.NoError(t, os.Link(canary+"/a", at)) },
	"fifo":            func(t *testing.T, at, _ string) { require.NoError(t, unix.Mkfifo(at, 0o666)) },
	"file":            func(t *testing.T, at, _ string) { require.NoError(t, os.WriteFile(at, []byte("mine"), 0o666)) },
	"empty directory": func(t *testing.T, at, _ string) { require.NoError(t, os.Mkdir(at, 0o777)) },
	"full directory": func(t *testing.T, at, canary string) {
		require.NoError(t, os.MkdirAll(filepath.Join(at, "sub", "below"), 0o777))
		require.NoError(t, os.Symlink(canary, filepath.Join(at, "sub", "link")))
		require.NoError(t, os.WriteFile(filepath.Join(at, "f"), nil, 0o666))
	},
	"mount": func(t *testing.T, at, canary string) {
		require.NoError(t, os.Mkdir(at, 0o777))
		bind(t, canary, at)
	},
	"mounted file": func(t *testing.T, at, canary string) {
		require.NoError(t, os.WriteFile(at, nil, 0o666))
		bind(t, canary+"/a", at)
	},
}

func bind(t *testing.T, source, target string) {
	t.Helper()
	mounttest.RequireMounts(t)
	require.NoError(t, unix.Mount(source, target, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(target, unix.UMOUNT_NOFOLLOW)) })
}

// TestCVE_2017_1002102 plants everything at each of the writer's names. What has something in it, and what is mounted,
// stays and is an error; the rest is replaced; what lies outside is never touched.
func TestCVE_2017_1002102(t *testing.T) {
	foreign := map[string]string{
		dataLink: "full directory, mount, mounted file", newDataLink: "full directory, mount, mounted file",
		staleSet: "mount, mounted file",
		"data":   "hard link, fifo, file, empty directory, full directory, mount, mounted file",
	}
	for name, refused := range foreign {
		for what, plant := range planted {
			for _, old := range []bool{false, true} {
				if old && what == "link to a file" || !old && what == "fifo" {
					continue // half of the rows each way are enough
				}
				t.Run(name+" is "+what, func(t *testing.T) {
					dir := t.TempDir()
					canary, before := canary(t)
					w := newWriter(t, dir, Options{})
					w.withoutOpenat2 = old
					mustWrite(t, w, oldPayload)
					if name == "data" || name == dataLink {
						require.NoError(t, os.Remove(filepath.Join(dir, name)))
					}
					plant(t, filepath.Join(dir, name), canary)

					result, err := w.Write(t.Context(), newPayload)
					if strings.Contains(", "+refused+",", ", "+what+",") {
						require.ErrorIs(t, err, ErrForeign)
						require.ErrorContains(t, err, filepath.Join(dir, name))
						inTheWay := name == dataLink || name == newDataLink
						assert.Equal(t, !inTheWay, result.Published)
						assert.Equal(t, !inTheWay, outcome.IsUncertain(err))
						_, err := os.Lstat(filepath.Join(dir, name))
						assert.NoError(t, err)
					} else {
						require.NoError(t, err)
						requireShows(t, dir, newPayload)
					}
					assert.Equal(t, before, picture(t, canary))
				})
			}
		}
	}
}

// TestPlantedInTheSet puts things into the set that is published. It is written once more, without them.
func TestPlantedInTheSet(t *testing.T) {
	for _, at := range []string{"data", "planted", "d/e/f", "d/planted"} {
		for what, plant := range planted {
			t.Run(at+" is "+what, func(t *testing.T) {
				dir := t.TempDir()
				canary, before := canary(t)
				p := payload{"data": {Data: []byte("mine"), Mode: 0o600}, "d/e/f": {Data: []byte("mine"), Mode: 0o600}}
				w := newWriter(t, dir, Options{})
				old := mustWrite(t, w, p).Dir
				name := filepath.Join(dir, old, at)
				_ = os.Remove(name)
				plant(t, name, canary)
				result, err := w.Write(t.Context(), p)
				switch same := what == "file" && !strings.HasSuffix(at, "planted"); {
				case strings.HasPrefix(what, "mount"):
					require.ErrorIs(t, err, ErrForeign)
					require.True(t, outcome.IsUncertain(err))
					require.True(t, result.Published, "the new set does not wait for the old one to go")
				case same: // only its content counts
					require.NoError(t, err)
					require.False(t, result.Published)
				default:
					require.NoError(t, err)
					require.True(t, result.Published)
					requireShows(t, dir, p)
				}
				assert.Equal(t, before, picture(t, canary))
			})
		}
	}
}

// TestDeviceIsNotOpened: to open some devices is to rewind or to reset them. A FIFO stands for them, whose writer would
// see that it was opened.
func TestDeviceIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	p := payload{"a": {Mode: 0o600}}
	first := mustWrite(t, w, p)
	name := filepath.Join(dir, first.Dir, "a")
	require.NoError(t, os.Remove(name))
	require.NoError(t, unix.Mkfifo(name, 0o600))
	root, err := w.openRoot()
	require.NoError(t, err)
	defer root.close()
	d, err := root.openDir(first.Dir)
	require.NoError(t, err)
	defer d.close()
	_, err = d.openFile("a")
	require.ErrorIs(t, err, ErrForeign)
	mustWrite(t, w, p)
}

// TestDeepLeftoverCostsNoDescriptors removes a tree that is deeper than a path can be and a process can open.
func TestDeepLeftoverCostsNoDescriptors(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	plantDeep(t, dir, staleSet, 2100)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = lowestFree(t) + 8
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	result, err := w.Write(t.Context(), newPayload)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, err)
	assert.Equal(t, []string{staleSet}, result.Cleared)
	requireShows(t, dir, newPayload)
}

// plantDeep makes directories in each other, with a file in each.
func plantDeep(t *testing.T, dir, name string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, dirFlags, 0)
	require.NoError(t, err)
	for range depth {
		require.NoError(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, dirFlags, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(at))
		at, name = next, "d"
		require.NoError(t, unix.Mknodat(at, "f", unix.S_IFREG|0o600, 0))
	}
	require.NoError(t, unix.Close(at))
}

func TestDirectoriesThatSetPermsHasClosed(t *testing.T) {
	asOrdinaryUser(t, func(dir string) {
		w, err := New(dir, Options{})
		assert.NoError(t, err)
		p := payload{"a/b/c/d/f": {Mode: 0o600}, "a/g": {Mode: 0o600}}
		first, err := w.Write(t.Context(), p)
		assert.NoError(t, err)
		for _, below := range []string{"a/b/c/d", "a/b/c", "a/b", "a", "."} {
			assert.NoError(t, os.Chmod(filepath.Join(dir, first.Dir, below), 0o555))
		}
		_, err = w.Write(t.Context(), payload{"n": {Mode: 0o600}})
		assert.NoError(t, err)
		assert.ElementsMatch(t, []string{dataLink, published(dir), "n"}, list(t, dir))
	})
}

func TestOrdinaryUserGivesNothingAway(t *testing.T) {
	asOrdinaryUser(t, func(dir string) {
		w, err := New(dir, Options{})
		assert.NoError(t, err)
		_, err = w.Write(t.Context(), payload{"a": {Mode: 0o600, FsUser: user(1)}})
		assert.ErrorIs(t, err, unix.EPERM)
		assert.False(t, outcome.IsUncertain(err))
		assert.Empty(t, list(t, dir))
		_, err = w.Write(t.Context(), payload{"a": {Mode: 0o600, FsUser: user(int64(os.Geteuid()))}})
		assert.NoError(t, err)
	})
}

// TestLinkSwapRace swaps each of the writer's names for a link to the canary and back, a hundred thousand times, while
// it writes. Files and links are given to another user, which must happen to no file of the canary.
func TestLinkSwapRace(t *testing.T) {
	const swaps = 100_000
	dir := mountTmpfs(t, "")
	canary, before := canary(t)
	p := [2]payload{
		{"a": {Data: []byte("1"), Mode: 0o644}, "dir/f": {Data: []byte("1"), Mode: 0o644}, "dir/sub/deep": {Mode: 0o644}},
		{"etc/passwd": {Data: []byte("2"), Mode: 0o666}, "dir/sub": {Data: []byte("2"), Mode: 0o666}},
	}
	if os.Geteuid() == 0 && !inUserNamespace(t) {
		p[1]["dir/sub"] = FileProjection{Data: []byte("2"), Mode: 0o666, FsUser: user(12345)}
		p[0]["a"] = FileProjection{Data: []byte("1"), Mode: 0o644, FsUser: user(12345)}
	}
	w := newWriter(t, dir, Options{})
	s := &swapper{t: t, dir: dir, canary: canary}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.run(swaps)
	}()
	writes, published := 0, 0
	for running := true; running; writes++ {
		select {
		case <-ended:
			running = false
		default:
		}
		result, err := w.Write(t.Context(), p[writes%2])
		if result.Published {
			published++
		}
		if err != nil {
			expected := []error{ErrForeign, ErrConflict, unix.ENOTDIR, unix.ELOOP, unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.EISDIR}
			require.True(t, errorIsAny(err, expected), "%v", err)
		}
	}
	assert.Greater(t, s.done, swaps/10, "swaps that found something to swap")
	assert.Positive(t, published)
	t.Logf("%d swaps, %d writes, %d published", s.done, writes, published)
	assert.Equal(t, before, picture(t, canary))
	_ = os.Remove(filepath.Join(dir, "evil"))
	_, err := w.Write(t.Context(), p[0])
	require.NoError(t, err)
	mustWrite(t, w, p[1])
}

func errorIsAny(err error, targets []error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

func inUserNamespace(t *testing.T) bool {
	t.Helper()
	content, err := os.ReadFile("/proc/self/uid_map")
	require.NoError(t, err)
	return strings.Join(strings.Fields(string(content)), " ") != "0 0 4294967295"
}

// TestHardLinkInThePlaceOfALinkIsNotGivenAway: a workload must not get another owner's file by a hard link.
func TestHardLinkInThePlaceOfALinkIsNotGivenAway(t *testing.T) {
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	canary, _ := canary(t)
	w := newWriter(t, dir, Options{})
	published, planted := false, false
	w.before = func(call, name string) error {
		switch {
		case call == "rename":
			published = true
		case published && call == "chown" && name == "a":
			planted = true
			require.NoError(t, os.Remove(filepath.Join(dir, "a")))
			require.NoError(t, os.Link(canary+"/a", filepath.Join(dir, "a")))
		}
		return nil
	}
	_, err := w.Write(t.Context(), payload{"a": {Mode: 0o600, FsUser: user(12345)}})
	require.NoError(t, err)
	require.True(t, planted)
	assert.Zero(t, statOf(t, canary+"/a").Uid)

	root, err := w.openRoot()
	require.NoError(t, err)
	defer root.close()
	_, err = root.ownLink("a", 12345)
	require.ErrorIs(t, err, ErrConflict)
	assert.Zero(t, statOf(t, canary+"/a").Uid)
}

// TestManyFilesPlantedInTheSet: neither what is looked at nor what is told grows with what a workload plants.
func TestManyFilesPlantedInTheSet(t *testing.T) {
	dir := mountTmpfs(t, "")
	w := newWriter(t, dir, Options{})
	p := payload{"d/f": {Mode: 0o600}}
	first := mustWrite(t, w, p)
	for i := range maxListed + 100 {
		require.NoError(t, unix.Mknod(filepath.Join(dir, first.Dir, strconv.Itoa(i)), unix.S_IFREG|0o600, 0))
	}
	result := mustWrite(t, w, p)
	assert.True(t, result.Published)
	assert.NotEmpty(t, result.Removed)
	assert.LessOrEqual(t, len(result.Removed), maxListed)
}

// swapper exchanges names for a link to the canary, and back.
type swapper struct {
	t           *testing.T
	dir, canary string
	tried, done int
}

func (s *swapper) run(swaps int) {
	root, err := unix.Open(s.dir, dirFlags, 0)
	if !assert.NoError(s.t, err) {
		return
	}
	defer unix.Close(root)
	for i := 0; s.tried < swaps; i++ {
		names := []string{dataLink, newDataLink, "a", "dir", published(s.dir)}
		name := names[i%len(names)]
		switch {
		case name != names[4]:
			s.swap(root, name)
		case !isSetName(name): // swapped
			s.tried++
		case i%2 == 0:
			s.swap(root, name)
		default: // inside the set
			if at, err := unix.Openat(root, name, dirFlags, 0); err == nil {
				s.swap(at, "dir")
				_ = unix.Close(at)
			}
		}
	}
}

func (s *swapper) swap(at int, name string) {
	const evil = "evil"
	s.tried += 2
	if errors.Is(unix.Unlinkat(at, evil, 0), unix.EISDIR) { // a set whose name was taken meanwhile
		_ = unix.Renameat(at, evil, at, fmt.Sprintf("%s-%d", evil, s.tried))
	}
	if unix.Symlinkat(s.canary, at, evil) != nil {
		return
	}
	if unix.Renameat2(at, evil, at, name, unix.RENAME_EXCHANGE) != nil {
		return
	}
	s.done++
	if unix.Renameat2(at, evil, at, name, unix.RENAME_EXCHANGE) == nil {
		s.done++
		return
	}
	// The writer has removed the link. What was at the name goes back, or away if there is something again.
	if unix.Renameat2(at, evil, at, name, unix.RENAME_NOREPLACE) != nil {
		_ = unix.Unlinkat(at, evil, 0)
	}
}

// asOrdinaryUser calls do on a thread that is user 65534, with a directory of that user's.
func asOrdinaryUser(t *testing.T, do func(dir string)) {
	t.Helper()
	if os.Geteuid() != 0 || inUserNamespace(t) {
		dir := t.TempDir()
		if os.Geteuid() == 0 {
			t.Skip("missing: root of the machine, to become another user")
		}
		do(dir)
		return
	}
	parent := t.TempDir()
	dir := filepath.Join(parent, "volume")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chown(dir, 65534, 65534))
	onThreadOf(t, 65534, parent, do)
}

// TestSetThatIsSwappedIsNotPublished: what was filled is what is published, or nothing.
func TestSetThatIsSwappedIsNotPublished(t *testing.T) {
	for name, swap := range map[string]func(t *testing.T, dir, set string){
		"its directory": func(t *testing.T, dir, set string) {
			require.NoError(t, os.Rename(filepath.Join(dir, set), filepath.Join(dir, "stolen")))
			require.NoError(t, os.Mkdir(filepath.Join(dir, set), 0o755))
		},
		"its link": func(t *testing.T, dir, _ string) {
			require.NoError(t, os.Remove(filepath.Join(dir, newDataLink)))
			require.NoError(t, os.Symlink("elsewhere", filepath.Join(dir, newDataLink)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			w := newWriter(t, dir, Options{})
			set := ""
			w.before = func(call, of string) error {
				switch {
				case call == "mkdir" && isSetName(of):
					set = of
				case name == "its directory" && call == "create", name == "its link" && call == "rename":
					w.before = nil
					swap(t, dir, set)
				}
				return nil
			}
			result, err := w.Write(t.Context(), payload{"a": {Mode: 0o600}})
			require.ErrorIs(t, err, ErrConflict)
			assert.False(t, result.Published)
			mustWrite(t, w, payload{"a": {Mode: 0o600}})
		})
	}
}

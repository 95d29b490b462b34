package hostpath

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

func spec(path string, want v1.HostPathType) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			HostPath: &v1.HostPathVolumeSource{Path: path, Type: &want},
		}},
	}, false)
}

// newPlugin returns the plugin of a node whose root is a directory of the test.
func newPlugin(t *testing.T, options Options) (*Plugin, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "node")
	host, err := volume.NewHost(volume.HostOptions{RootDir: root, NodeName: "node-1"})
	require.NoError(t, err)
	plugin := New(options)
	require.NoError(t, volume.NewVolumePluginMgr(host).InitPlugins(t.Context(), plugin))
	return plugin, root
}

func setUp(ctx context.Context, t *testing.T, plugin *Plugin, s *volume.Spec) error {
	t.Helper()
	mounter, err := plugin.NewMounter(s, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}})
	require.NoError(t, err)
	return mounter.SetUp(ctx, volume.MounterArgs{})
}

func TestConformance(t *testing.T) {
	for name, inline := range map[string]bool{"of a pod": true, "persistent": false} {
		t.Run(name, func(t *testing.T) {
			volumetest.Run(t, volumetest.Config{
				NewPlugin: func(testing.TB) volume.VolumePlugin { return New(Options{}) },
				NewSpec: func(t testing.TB) *volume.Spec {
					s := spec(t.TempDir(), v1.HostPathDirectory)
					if inline {
						return volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
							HostPath: s.PersistentVolume.Spec.HostPath,
						}})
					}
					return s
				},
				Require:        volume.CapPersistent,
				PlainDirectory: true,
				Shared:         true,
				Lifetime:       volumetest.LifetimeOfStorage,
			})
		})
	}
}

// places makes one thing of each kind and returns its path by what the errors call it.
func places(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir) // the path of a socket must be short
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.Mkdir(at("d"), 0o755))
	require.NoError(t, os.WriteFile(at("f"), nil, 0o600))
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", "s")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	found := map[string]string{
		"directory": at("d"), "regular file": at("f"), "socket": at("s"), "nothing": at("missing"),
		"character device": os.DevNull,
	}
	makePipe(t, at("p"))
	found["named pipe"] = at("p")
	if device := blockDevice(t); device != "" {
		found["block device"] = device
	}
	return found
}

// blockDevice returns a block device of the machine, or "".
func blockDevice(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/dev")
	require.NoError(t, err)
	for _, entry := range entries {
		if entry.Type()&fs.ModeDevice != 0 && entry.Type()&fs.ModeCharDevice == 0 {
			return filepath.Join("/dev", entry.Name())
		}
	}
	return ""
}

func TestEachTypeAcceptsWhatItNamesAndNothingElse(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("missing: the devices and pipes of Linux")
	}
	plugin, _ := newPlugin(t, Options{})
	accepts := map[v1.HostPathType]string{
		v1.HostPathDirectory: "directory", v1.HostPathFile: "regular file", v1.HostPathSocket: "socket",
		v1.HostPathCharDev: "character device", v1.HostPathBlockDev: "block device",
		v1.HostPathDirectoryOrCreate: "directory", v1.HostPathFileOrCreate: "regular file",
	}
	for want, noun := range accepts {
		for found, path := range places(t) {
			creates := want == v1.HostPathDirectoryOrCreate || want == v1.HostPathFileOrCreate
			t.Run(string(want)+" of "+found, func(t *testing.T) {
				err := setUp(t.Context(), t, plugin, spec(path, want))
				link := filepath.Join(t.TempDir(), "link")
				require.NoError(t, os.Symlink(path, link))
				throughLink := setUp(t.Context(), t, plugin, spec(link, want))
				switch {
				case found == noun, found == "nothing" && creates:
					assert.NoError(t, err)
					assert.NoError(t, throughLink, "a link is followed")
				case found == "nothing":
					require.ErrorIs(t, err, fs.ErrNotExist)
					require.ErrorContains(t, err, "make a "+noun)
				default:
					require.ErrorIs(t, err, volume.ErrInvalid)
					var typeErr *TypeError
					require.ErrorAs(t, err, &typeErr)
					assert.Equal(t, TypeError{Path: path, Want: want, Found: found}, *typeErr)
					require.ErrorContains(t, err, "is a "+found+" and not a "+noun)
					assert.Error(t, throughLink)
				}
			})
		}
	}
}

func TestNoTypeChecksNothingAndMakesNothing(t *testing.T) {
	plugin, _ := newPlugin(t, Options{})
	missing := filepath.Join(t.TempDir(), "missing")
	require.NoError(t, setUp(t.Context(), t, plugin, spec(missing, v1.HostPathUnset)))
	assert.NoDirExists(t, missing)
}

func TestOrCreateMakesWhatIsMissingAndKeepsWhatIsThere(t *testing.T) {
	plugin, _ := newPlugin(t, Options{})
	dir := t.TempDir()
	deep, file := filepath.Join(dir, "a", "b"), filepath.Join(dir, "a", "file")
	require.NoError(t, setUp(t.Context(), t, plugin, spec(deep, v1.HostPathDirectoryOrCreate)))
	assert.DirExists(t, deep)
	require.NoError(t, setUp(t.Context(), t, plugin, spec(file, v1.HostPathFileOrCreate)))
	require.NoError(t, os.WriteFile(file, []byte("kept"), 0o600))
	require.NoError(t, setUp(t.Context(), t, plugin, spec(file, v1.HostPathFileOrCreate)))
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "kept", string(content))

	orphan := filepath.Join(dir, "no-parent", "file")
	require.ErrorIs(t, setUp(t.Context(), t, plugin, spec(orphan, v1.HostPathFileOrCreate)), fs.ErrNotExist)
	assert.NoDirExists(t, filepath.Dir(orphan), "the parent of a file must exist")
}

func TestBadPathsAndTypesAreRefused(t *testing.T) {
	plugin, _ := newPlugin(t, Options{})
	for path, says := range map[string]string{
		"":                 "is empty",
		"relative/path":    "is relative",
		"/tmp/../etc":      "..",
		"/tmp/..":          "..",
		"/tmp/nul\x00byte": "NUL",
	} {
		t.Run(strconv.Quote(path), func(t *testing.T) {
			err := setUp(t.Context(), t, plugin, spec(path, v1.HostPathDirectoryOrCreate))
			require.ErrorIs(t, err, volume.ErrInvalid)
			require.ErrorContains(t, err, says)
		})
	}
	err := setUp(t.Context(), t, plugin, spec("/tmp", "Folder"))
	require.ErrorIs(t, err, volume.ErrInvalid)
	require.ErrorContains(t, err, `type "Folder" is not known: use one of Directory`)
}

func TestRootOfTheNodeIsRefusedFromAboveBelowAndThroughLinks(t *testing.T) {
	other := t.TempDir()
	plugin, root := newPlugin(t, Options{Protected: []string{other}})
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Dir(root), link))
	for _, path := range []string{
		root, root + "/", filepath.Join(root, "pods", "x"), filepath.Dir(root), "/",
		link, filepath.Join(link, "node", "pods"), other, filepath.Join(other, "x"),
	} {
		err := setUp(t.Context(), t, plugin, spec(path, v1.HostPathUnset))
		require.ErrorIs(t, err, volume.ErrInvalid, path)
		require.ErrorContains(t, err, "use another path")
	}
	sibling := root + "-sibling"
	assert.NoError(t, setUp(t.Context(), t, plugin, spec(sibling, v1.HostPathDirectoryOrCreate)))
}

// A path that leads to nothing is fine for the type that checks nothing, and what it leads to can be made later.
func TestLinksToWhatIsNotYetThereAreFollowed(t *testing.T) {
	plugin, root := newPlugin(t, Options{})
	dir := t.TempDir()
	link := func(name, target string) string {
		t.Helper()
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
		return filepath.Join(dir, name)
	}
	relative, err := filepath.Rel(dir, root)
	require.NoError(t, err)
	later := link("later", filepath.Join(root, "pods", "later"))
	for _, path := range []string{
		later, filepath.Join(later, "volumes"), link("again", "later"), link("relative", filepath.Join(relative, "pods", "x")),
	} {
		err := setUp(t.Context(), t, plugin, spec(path, v1.HostPathUnset))
		require.ErrorIs(t, err, volume.ErrInvalid, path)
		require.ErrorContains(t, err, "use another path", path)
	}
	harmless := link("harmless", filepath.Join(dir, "nothing"))
	require.NoError(t, setUp(t.Context(), t, plugin, spec(harmless, v1.HostPathUnset)))
	long := harmless
	for i := range 60 {
		long = link(strconv.Itoa(i), long)
	}
	require.Error(t, setUp(t.Context(), t, plugin, spec(long, v1.HostPathUnset)))
	circle := link("circle", "circle")
	require.Error(t, setUp(t.Context(), t, plugin, spec(circle, v1.HostPathUnset)))
}

func TestProtectedPathMustBeAbsolute(t *testing.T) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
	require.NoError(t, err)
	require.ErrorIs(t, New(Options{Protected: []string{"here"}}).Init(t.Context(), host), volume.ErrInvalid)
}

func TestOtherDirectoryIsRefused(t *testing.T) {
	plugin, _ := newPlugin(t, Options{})
	mounter, err := plugin.NewMounter(spec(t.TempDir(), v1.HostPathUnset), &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}})
	require.NoError(t, err)
	require.ErrorIs(t, mounter.SetUpAt(t.Context(), t.TempDir(), volume.MounterArgs{}), volume.ErrUnsupported)
}

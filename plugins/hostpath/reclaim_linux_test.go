package hostpath

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

func TestConformanceOfProvisionedVolumes(t *testing.T) {
	mounttest.RequireMounts(t) // where a mistake can remove nothing of the machine
	base := filepath.Join(t.TempDir(), "volumes")
	volumetest.Run(t, volumetest.Config{
		NewPlugin:      func(testing.TB) volume.VolumePlugin { return New(Options{BaseDir: base}) },
		Require:        volume.CapPersistent | volume.CapProvision | volume.CapRecycle | volume.CapDelete,
		PlainDirectory: true,
		Shared:         true,
		Lifetime:       volumetest.LifetimeOfStorage,
	})
	left, err := os.ReadDir(base)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// newBase returns a plugin with a base directory that exists, and that directory.
func newBase(t *testing.T, options Options) (*Plugin, string) {
	t.Helper()
	mounttest.RequireMounts(t) // as above
	options.BaseDir = filepath.Join(t.TempDir(), "volumes")
	require.NoError(t, os.Mkdir(options.BaseDir, 0o700))
	plugin, _ := newPlugin(t, options)
	return plugin, options.BaseDir
}

func claimOf(name string) volume.VolumeOptions {
	return volume.VolumeOptions{
		PVName: name, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
		PVC: &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Spec: v1.PersistentVolumeClaimSpec{Resources: v1.VolumeResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")},
			}},
		},
	}
}

func provision(t *testing.T, plugin *Plugin, name string) *v1.PersistentVolume {
	t.Helper()
	provisioner, err := plugin.NewProvisioner(claimOf(name))
	require.NoError(t, err)
	pv, err := provisioner.Provision(t.Context(), nil, nil)
	require.NoError(t, err)
	return pv
}

// reclaims are the two ways in which content is removed.
var reclaims = map[string]func(*Plugin, context.Context, *volume.Spec) error{
	"delete": func(p *Plugin, ctx context.Context, s *volume.Spec) error {
		deleter, err := p.NewDeleter(s)
		if err != nil {
			return err
		}
		return deleter.Delete(ctx)
	},
	"recycle": func(p *Plugin, ctx context.Context, s *volume.Spec) error {
		return p.Recycle(ctx, s.Name(), s, func(string, string) {})
	},
}

// canary makes a directory with a file in it, outside of everything, and returns the file.
func canary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "canary")
	require.NoError(t, os.WriteFile(path, []byte("alive"), 0o600))
	return path
}

func TestAProvisionedVolumeIsForEveryUserOfItsNode(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	plugin, base := newBase(t, Options{})
	require.NoError(t, os.Mkdir(filepath.Join(base, "pv"), 0o700)) // as a crash may have left it
	pv := provision(t, plugin, "pv")
	info, err := os.Stat(filepath.Join(base, "pv"))
	require.NoError(t, err)
	assert.Equal(t, fs.ModeDir|0o777, info.Mode())
	assert.Equal(t, v1.PersistentVolumeReclaimDelete, pv.Spec.PersistentVolumeReclaimPolicy)

	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	require.NoError(t, volume.CheckNodeAffinity(pv, node))
	node.Name = "node-2"
	require.ErrorIs(t, volume.CheckNodeAffinity(pv, node), volume.ErrNodeAffinity)
	provisioner, err := plugin.NewProvisioner(claimOf("pv"))
	require.NoError(t, err)
	_, err = provisioner.Provision(t.Context(), node, nil)
	require.ErrorIs(t, err, volume.ErrInfeasible)
	_, err = provisioner.Provision(t.Context(), nil, []v1.TopologySelectorTerm{{}})
	require.ErrorIs(t, err, volume.ErrInfeasible)
}

func TestClaimsThatCannotBeMetAreRefused(t *testing.T) {
	plugin, base := newBase(t, Options{})
	block := v1.PersistentVolumeBlock
	for what, c := range map[string]struct {
		change func(*volume.VolumeOptions)
		err    error
	}{
		"parameter":    {func(o *volume.VolumeOptions) { o.Parameters = map[string]string{"a": "b"} }, volume.ErrInvalid},
		"mount option": {func(o *volume.VolumeOptions) { o.MountOptions = []string{"ro"} }, volume.ErrInvalid},
		"name":         {func(o *volume.VolumeOptions) { o.PVName = "../pv" }, volume.ErrInvalid},
		"size":         {func(o *volume.VolumeOptions) { o.PVC.Spec.Resources.Requests = nil }, volume.ErrInvalid},
		"block":        {func(o *volume.VolumeOptions) { o.PVC.Spec.VolumeMode = &block }, volume.ErrInfeasible},
		"copy":         {func(o *volume.VolumeOptions) { o.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{} }, volume.ErrInfeasible},
		"other access": {func(o *volume.VolumeOptions) {
			o.PVC.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
		}, volume.ErrInfeasible},
		"without claim": {func(o *volume.VolumeOptions) { o.PVC = nil }, volume.ErrInvalid},
	} {
		options := claimOf("pv")
		c.change(&options)
		_, err := plugin.NewProvisioner(options)
		require.ErrorIs(t, err, c.err, what)
	}
	assert.NoDirExists(t, filepath.Join(base, "pv"))
}

func TestWithoutABaseNothingIsProvisionedOrRemoved(t *testing.T) {
	plugin, _ := newPlugin(t, Options{})
	assert.Zero(t, volume.CapabilitiesOf(plugin)&(volume.CapProvision|volume.CapRecycle|volume.CapDelete))
	_, err := plugin.NewProvisioner(claimOf("pv"))
	require.ErrorIs(t, err, volume.ErrUnsupported)
	_, err = plugin.NewDeleter(spec("/srv/data", v1.HostPathUnset))
	require.ErrorIs(t, err, volume.ErrInvalid)
	for _, dir := range []string{"here", "/", "//"} {
		require.ErrorIs(t, New(Options{BaseDir: dir}).Init(t.Context(), plugin.host), volume.ErrInvalid, dir)
	}
}

func TestOnlyWhatLiesInTheBaseIsRemoved(t *testing.T) {
	plugin, base := newBase(t, Options{})
	alive := canary(t)
	beside := base + "-beside"
	require.NoError(t, os.Mkdir(beside, 0o755))
	require.NoError(t, os.Symlink(filepath.Dir(alive), filepath.Join(base, "link")))
	for how, reclaim := range reclaims {
		for _, path := range []string{
			base, base + "/", "/", "", "volumes/pv", filepath.Dir(base), beside, filepath.Dir(alive), base + "/../volumes-beside",
			base + "/..", base + "/a/../..",
		} {
			require.ErrorIs(t, reclaim(plugin, t.Context(), spec(path, v1.HostPathUnset)), volume.ErrInvalid, how+" "+path)
		}
		require.Error(t, reclaim(plugin, t.Context(), spec(base+"/link/canary", v1.HostPathUnset)), how)
		inline := volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
			HostPath: &v1.HostPathVolumeSource{Path: base + "/pv"},
		}})
		require.ErrorIs(t, reclaim(plugin, t.Context(), inline), volume.ErrInvalid, how)
	}
	require.Error(t, reclaims["recycle"](plugin, t.Context(), spec(base+"/link", v1.HostPathUnset)), "a link is no volume")
	require.NoError(t, reclaims["delete"](plugin, t.Context(), spec(base+"/link", v1.HostPathUnset)), "it is removed, and not followed")
	assert.FileExists(t, alive)
	assert.DirExists(t, beside)
}

// A volume of another node may have the path of one that this node has.
func TestAVolumeOfAnotherNodeIsNotRemovedHere(t *testing.T) {
	onLabel := func(key, value string) *v1.VolumeNodeAffinity {
		return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}},
		}}}}
	}
	for what, c := range map[string]struct {
		affinity *v1.VolumeNodeAffinity
		here     bool
	}{
		"none":                    {nil, true},
		"the name of this node":   {onNode("node-1"), true},
		"the name of another":     {onNode("node-2"), false},
		"the label of this node":  {onLabel(v1.LabelHostname, "node-1"), true},
		"the label of another":    {onLabel(v1.LabelHostname, "node-2"), false},
		"a label of several ones": {onLabel("rack", "1"), false},
	} {
		for how, reclaim := range reclaims {
			t.Run(what+", "+how, func(t *testing.T) {
				plugin, base := newBase(t, Options{})
				path := filepath.Join(base, "pv")
				require.NoError(t, os.MkdirAll(filepath.Join(path, "content"), 0o755))
				s := spec(path, v1.HostPathUnset)
				s.PersistentVolume.Spec.NodeAffinity = c.affinity
				err := reclaim(plugin, t.Context(), s)
				if c.here {
					require.NoError(t, err)
					assert.NoDirExists(t, filepath.Join(path, "content"))
					return
				}
				require.ErrorIs(t, err, volume.ErrNodeAffinity)
				assert.DirExists(t, filepath.Join(path, "content"))
			})
		}
	}
}

func TestContentIsRemovedAndNoLinkFollowed(t *testing.T) {
	for how, reclaim := range reclaims {
		t.Run(how, func(t *testing.T) {
			plugin, base := newBase(t, Options{})
			alive := canary(t)
			pv := provision(t, plugin, "pv")
			other := provision(t, plugin, "other")
			dir := pv.Spec.HostPath.Path
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755))
			require.NoError(t, os.Symlink(filepath.Dir(alive), filepath.Join(dir, "a", "link")))
			require.NoError(t, os.Link(alive, filepath.Join(dir, "hard")))
			require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))

			require.NoError(t, reclaim(plugin, t.Context(), volume.NewSpecFromPersistentVolume(pv, false)))
			entries, err := os.ReadDir(dir)
			if how == "delete" {
				require.ErrorIs(t, err, fs.ErrNotExist)
			} else {
				require.NoError(t, err)
			}
			assert.Empty(t, entries)
			assert.FileExists(t, alive)
			assert.DirExists(t, other.Spec.HostPath.Path)
			assert.DirExists(t, base)
		})
	}
}

func TestNothingIsRemovedWhereSomethingIsMounted(t *testing.T) {
	for how, reclaim := range reclaims {
		for _, at := range []string{"pv", "pv/inside", "above"} {
			t.Run(how+" "+at, func(t *testing.T) {
				plugin, base := newBase(t, Options{})
				alive := canary(t)
				require.NoError(t, os.MkdirAll(filepath.Join(filepath.Dir(alive), "pv"), 0o755))
				require.NoError(t, os.MkdirAll(filepath.Join(base, "pv"), 0o755))
				kept := filepath.Join(base, "pv", "file")
				require.NoError(t, os.WriteFile(kept, nil, 0o600))
				mounter, target := mount.New(mount.Options{}), filepath.Join(base, at)
				err := mounter.Mount(t.Context(), mount.Request{Source: filepath.Dir(alive), Target: target, Options: []string{"bind"}})
				require.NoError(t, err)
				path := filepath.Join(base, "pv")
				if at == "above" {
					path = filepath.Join(target, "pv")
				}
				err = reclaim(plugin, t.Context(), spec(path, v1.HostPathUnset))
				require.NoError(t, mounter.Unmount(context.WithoutCancel(t.Context()), target, mount.UnmountOptions{}))
				require.ErrorIs(t, err, volume.ErrInUse)
				assert.FileExists(t, alive)
				assert.DirExists(t, filepath.Join(filepath.Dir(alive), "pv"))
				assert.FileExists(t, kept)
			})
		}
	}
}

// unread is a mounter whose table cannot be read.
type unread struct {
	*mount.Mounter
	t *testing.T
}

func (u unread) List(context.Context) ([]mount.MountPoint, error) {
	assert.Fail(u.t, "the mount table was listed")
	return nil, mount.ErrUnsupported
}

// A volume is looked at itself, since the mount table is that of all volumes of the node.
func TestAVolumeIsRemovedWithoutTheTableOfAllMounts(t *testing.T) {
	for name, reclaim := range reclaims {
		t.Run(name, func(t *testing.T) {
			plugin, base := newBase(t, Options{Mounter: unread{mount.New(mount.Options{}), t}})
			pv := provision(t, plugin, "data")
			require.NoError(t, os.MkdirAll(filepath.Join(base, "data", "deep", "below"), 0o700))
			require.NoError(t, reclaim(plugin, t.Context(), volume.NewSpecFromPersistentVolume(pv, false)))
			assert.NoDirExists(t, filepath.Join(base, "data", "deep"))
		})
	}
}

func TestABaseThatLeadsToTheNodesOwnDirectoriesIsRefused(t *testing.T) {
	mounttest.RequireMounts(t)
	link := filepath.Join(t.TempDir(), "base")
	plugin, root := newPlugin(t, Options{BaseDir: link})
	alive := filepath.Join(root, "pods", "pv", "canary")
	require.NoError(t, os.MkdirAll(filepath.Dir(alive), 0o755))
	require.NoError(t, os.WriteFile(alive, nil, 0o600))
	require.NoError(t, os.Symlink(filepath.Join(root, "pods"), link))
	for how, reclaim := range reclaims {
		require.ErrorIs(t, reclaim(plugin, t.Context(), spec(link+"/pv", v1.HostPathUnset)), volume.ErrInvalid, how)
	}
	provisioner, err := plugin.NewProvisioner(claimOf("new"))
	require.NoError(t, err)
	_, err = provisioner.Provision(t.Context(), nil, nil)
	require.ErrorIs(t, err, volume.ErrInvalid)
	assert.FileExists(t, alive)
}

func TestWhatIsMissingIsGoneOnlyWhereTheBaseIs(t *testing.T) {
	plugin, base := newBase(t, Options{})
	gone := spec(filepath.Join(base, "pv"), v1.HostPathUnset)
	require.NoError(t, reclaims["delete"](plugin, t.Context(), gone))
	require.ErrorIs(t, reclaims["recycle"](plugin, t.Context(), gone), fs.ErrNotExist)
	require.NoError(t, os.Remove(base))
	require.ErrorIs(t, reclaims["delete"](plugin, t.Context(), gone), fs.ErrNotExist, "its disk may not be mounted")
}

// recycler keeps what it is asked for.
type recycler struct{ asked []volume.PodRecycleRequest }

func (r *recycler) RecycleByPod(_ context.Context, request volume.PodRecycleRequest, _ volume.RecycleEventRecorder) error {
	r.asked = append(r.asked, request)
	return nil
}

func TestAPodRecyclesWhereThereIsOne(t *testing.T) {
	pods := &recycler{}
	plugin, base := newBase(t, Options{Recycler: pods})
	file := filepath.Join(base, "pv", "file")
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	recycle := reclaims["recycle"]
	require.ErrorIs(t, recycle(plugin, t.Context(), spec("/srv", v1.HostPathUnset)), volume.ErrInvalid)
	require.NoError(t, recycle(plugin, t.Context(), spec(base+"/pv/", v1.HostPathDirectory)))
	require.Len(t, pods.asked, 1)
	assert.Equal(t, volume.PodRecycleRequest{
		PVName: "data", Timeout: 5 * time.Minute,
		Volume: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: base + "/pv"}},
	}, pods.asked[0])
	assert.FileExists(t, file, "the pod does it")
}

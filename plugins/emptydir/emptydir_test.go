package emptydir

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

func spec(medium v1.StorageMedium, limit string) *volume.Spec {
	source := &v1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		quantity := resource.MustParse(limit)
		source.SizeLimit = &quantity
	}
	return volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: source}})
}

var pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}}

func newPlugin(t *testing.T) *Plugin {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
	require.NoError(t, err)
	plugin := New(Options{Mounter: mount.New(mount.Options{})})
	require.NoError(t, volume.NewVolumePluginMgr(host).InitPlugins(t.Context(), plugin))
	return plugin
}

func TestMediumIsChecked(t *testing.T) {
	plugin := newPlugin(t)
	for medium, want := range map[v1.StorageMedium]error{
		"": nil, "Memory": nil,
		"HugePages": volume.ErrUnsupported, "HugePages-2Mi": volume.ErrUnsupported,
		"memory": volume.ErrInvalid, "Disk": volume.ErrInvalid,
	} {
		_, err := plugin.NewMounter(spec(medium, ""), pod)
		assert.ErrorIs(t, err, want, medium)
	}
}

func TestLimitIsChecked(t *testing.T) {
	plugin := newPlugin(t)
	for limit, want := range map[string]error{"0": nil, "1Mi": nil, "-1": volume.ErrInvalid} {
		for _, medium := range []v1.StorageMedium{v1.StorageMediumDefault, v1.StorageMediumMemory} {
			_, err := plugin.NewMounter(spec(medium, limit), pod)
			assert.ErrorIs(t, err, want, "%s %q", limit, medium)
		}
	}
}

func TestNoMounterMeansThatOfTheHost(t *testing.T) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
	require.NoError(t, err)
	plugin := New(Options{})
	require.NoError(t, plugin.Init(t.Context(), host))
	unmounter, err := plugin.NewUnmounter("scratch", pod.UID)
	require.NoError(t, err)
	if runtime.GOOS == "linux" {
		require.NoError(t, unmounter.TearDown(t.Context()), "nothing is there")
	}
}

func TestNameOfAnUnfinishedSetUpIsRefused(t *testing.T) {
	plugin := newPlugin(t)
	_, err := plugin.NewUnmounter(".setting-up-scratch", pod.UID)
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func TestSmallestLimitWins(t *testing.T) {
	quantity := func(s string) *resource.Quantity {
		q := resource.MustParse(s)
		return &q
	}
	assert.EqualValues(t, 0, smallest(nil, nil))
	assert.EqualValues(t, 0, smallest(quantity("0"), nil))
	assert.EqualValues(t, 1<<20, smallest(quantity("1Mi"), nil))
	assert.EqualValues(t, 1<<20, smallest(quantity("2Mi"), quantity("1Mi")))
	assert.EqualValues(t, 1<<20, smallest(quantity("1Mi"), quantity("2Mi")))
}

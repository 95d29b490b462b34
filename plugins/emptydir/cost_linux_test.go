package emptydir

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// reads returns how many bytes this process has read so far, from files of the kernel too: those of the mount table are most.
func reads(t *testing.T) (bytes int64) {
	t.Helper()
	content, err := os.ReadFile("/proc/self/io")
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(content), "rchar: %d", &bytes)
	require.NoError(t, err)
	return bytes
}

// costs are bytes that were read per volume.
type costs struct{ setUp, setUpAgain, measure, tearDown int64 }

// costOf sets up, looks at, and tears down n volumes, of which every second one is in memory, one of each pod.
func costOf(t *testing.T, n int) costs {
	t.Helper()
	plugin := newPlugin(t)
	specs := []*volume.Spec{spec("Memory", "1Mi"), spec("", "")}
	each := func(do func(s *volume.Spec, uid types.UID)) int64 {
		before := reads(t)
		for i := range n {
			do(specs[i%2], types.UID(fmt.Sprint("pod-", i)))
		}
		after := reads(t)
		return (after - before) / int64(n)
	}
	mounterOf := func(p *Plugin, s *volume.Spec, uid types.UID) volume.Mounter {
		mounter, err := p.NewMounter(s, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
		require.NoError(t, err)
		return mounter
	}
	var c costs
	c.setUp = each(func(s *volume.Spec, uid types.UID) {
		mounter := mounterOf(plugin, s, uid)
		require.NoError(t, mounter.SetUp(t.Context(), volume.MounterArgs{}))
		require.NoError(t, os.WriteFile(filepath.Join(mounter.GetPath(), "file"), nil, 0o600))
	})
	c.setUpAgain = each(func(s *volume.Spec, uid types.UID) {
		require.NoError(t, mounterOf(newLike(plugin), s, uid).SetUp(t.Context(), volume.MounterArgs{}))
	})
	c.measure = each(func(s *volume.Spec, uid types.UID) {
		_, err := mounterOf(plugin, s, uid).GetMetrics(t.Context())
		require.NoError(t, err)
	})
	c.tearDown = each(func(_ *volume.Spec, uid types.UID) {
		unmounter, err := plugin.NewUnmounter("scratch", uid)
		require.NoError(t, err)
		require.NoError(t, unmounter.TearDown(t.Context()))
		assert.NoDirExists(t, unmounter.GetPath())
	})
	return c
}

// A volume costs as much among many as among few: nothing that is done to one reads of all the others.
func TestWhatAVolumeCostsDoesNotDependOnTheNumberOfVolumes(t *testing.T) {
	mounttest.RequireMounts(t)
	few, many := costOf(t, 50), costOf(t, 800)
	t.Logf("bytes read per volume, of 50: %+v, of 800: %+v", few, many)
	const slack = 512
	assert.LessOrEqual(t, many.setUp, few.setUp+slack)
	assert.LessOrEqual(t, many.setUpAgain, few.setUpAgain+slack)
	assert.LessOrEqual(t, many.measure, few.measure+slack)
	assert.LessOrEqual(t, many.tearDown, few.tearDown+slack)
}

package cache_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/volume"
)

// claimed returns the spec of a PersistentVolume with that access mode.
func claimed(name string, mode v1.PersistentVolumeAccessMode, capacity string) *volume.Spec {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{mode}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "plain.example.com"}
	if capacity != "" {
		pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: size(capacity)}
	}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func labelled(podName string, spec *volume.Spec, labels ...string) cache.AddPodOptions {
	return cache.AddPodOptions{Pod: cachetest.Pod(podName), VolumeSpec: spec, OuterVolumeSpecName: "data", SELinuxLabels: labels}
}

func relabelling(o cache.AddPodOptions) cache.AddPodOptions {
	policy := v1.SELinuxChangePolicyRecursive
	o.Pod.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxChangePolicy: &policy}
	return o
}

// TestWhichLabelAVolumeIsMountedWith: only where the volume, the plugin and the pod allow it.
func TestWhichLabelAVolumeIsMountedWith(t *testing.T) {
	once, rw := claimed("s1", v1.ReadWriteOncePod, ""), claimed("s1", v1.ReadWriteOnce, "")
	both := claimed("s1", v1.ReadWriteOncePod, "")
	both.PersistentVolume.Spec.AccessModes = append(both.PersistentVolume.Spec.AccessModes, v1.ReadWriteOnce)
	for name, test := range map[string]struct {
		options cache.AddPodOptions
		which   cache.SELinuxMount
		cannot  bool
		want    string
	}{
		"one pod at a time":              {options: labelled("p", once, "a"), want: "a"},
		"containers agree":               {options: labelled("p", once, "a", "a"), want: "a"},
		"no labels":                      {options: labelled("p", once)},
		"several modes":                  {options: labelled("p", both, "a")},
		"several modes, all":             {options: labelled("p", both, "a"), which: cache.SELinuxMountAll, want: "a"},
		"another mode":                   {options: labelled("p", rw, "a")},
		"another mode, all":              {options: labelled("p", rw, "a"), which: cache.SELinuxMountAll, want: "a"},
		"inline, all":                    {options: labelled("p", cachetest.Spec("s1"), "a"), which: cache.SELinuxMountAll},
		"the plugin cannot":              {options: labelled("p", once, "a"), cannot: true},
		"the pod wants it relabelled":    {options: relabelling(labelled("p", once, "a"))},
		"disagreement that is no matter": {options: labelled("p", rw, "a", "b")},
	} {
		t.Run(name, func(t *testing.T) {
			d := cache.NewDesiredStateOfWorld(cachetest.NewPlugins(t, &able{context: !test.cannot}), cache.Options{SELinuxMount: test.which})
			name, err := d.AddPodToVolume(test.options)
			require.NoError(t, err)
			row, _ := d.VolumeToMount(name, "p")
			assert.Equal(t, test.want, row.SELinuxLabel)
			assert.True(t, d.PodExistsInVolume("p", name))
		})
	}
}

func TestTwoLabelsOnOneVolumeAreRefused(t *testing.T) {
	told := &changes{}
	d := cache.NewDesiredStateOfWorld(cachetest.NewPlugins(t, &able{context: true}), told.options())
	once := claimed("s1", v1.ReadWriteOncePod, "")
	_, err := d.AddPodToVolume(labelled("p", once, "a", "b"))
	var conflict *cache.SELinuxConflictError
	require.ErrorAs(t, err, &conflict)
	require.ErrorIs(t, err, cache.ErrSELinuxConflict)
	assert.Equal(t, cache.SELinuxConflictError{VolumeName: "s1", PodName: "p", Label: "b", OtherPodName: "p", OtherLabel: "a"}, *conflict)
	assert.Empty(t, d.GetVolumeNames())

	name, err := d.AddPodToVolume(labelled("p", once, "a"))
	require.NoError(t, err)
	told.take()
	for _, other := range []cache.AddPodOptions{
		labelled("q", once, "b"), labelled("q", once), relabelling(labelled("q", once, "a")),
	} {
		_, err = d.AddPodToVolume(other)
		require.ErrorAs(t, err, &conflict)
		assert.Equal(t, [2]volume.UniquePodName{"q", "p"}, [2]volume.UniquePodName{conflict.PodName, conflict.OtherPodName})
		assert.Contains(t, err.Error(), `"a"`)
		assert.Contains(t, err.Error(), `"p"`)
		assert.Contains(t, err.Error(), `"q"`)
	}
	assert.Empty(t, told.take())
	assert.Equal(t, []volume.UniquePodName{"p"}, d.GetPods())

	_, err = d.AddPodToVolume(labelled("q", once, "a"))
	require.NoError(t, err)
	d.DeletePod("q")
	_, err = d.AddPodToVolume(labelled("p", once, "b"))
	require.NoError(t, err, "the only pod may change its mind")
	row, _ := d.VolumeToMount(name, "p")
	assert.Equal(t, "b", row.SELinuxLabel)
	d.DeletePod("p")
	_, err = d.AddPodToVolume(labelled("q", once, "c"))
	require.NoError(t, err, "the label goes with the last pod")
}

func TestTheSizeOfAPersistentVolumeGrowsForAllItsPods(t *testing.T) {
	d, told := newDesired(t, &cachetest.Plugin{})
	sized := func(podName string) string {
		row, ok := d.VolumeToMount(cachetest.Shared("s1"), volume.UniquePodName(podName))
		require.True(t, ok)
		return row.DesiredPersistentVolumeSize.String()
	}
	want := func(podName, capacity string) *volume.Spec {
		spec := claimed("s1", v1.ReadWriteMany, capacity)
		_, err := d.AddPodToVolume(labelled(podName, spec))
		require.NoError(t, err)
		return spec
	}
	want("p", "1Gi")
	assert.Equal(t, "1Gi", sized("p"), "the first pod brings it")
	want("q", "2Gi")
	assert.Equal(t, "2Gi 2Gi", sized("p")+" "+sized("q"), "a later pod brings the news for all")
	want("r", "1Gi")
	assert.Equal(t, "2Gi", sized("r"), "an old object does not shrink it")
	readOnly := claimed("s1", v1.ReadWriteMany, "2Gi")
	readOnly.ReadOnly = true
	_, err := d.AddPodToVolume(labelled("reader", readOnly))
	require.NoError(t, err)
	assert.Equal(t, "0", sized("reader"), "who only reads grows nothing")

	told.take()
	d.UpdatePersistentVolumeSize(cachetest.Shared("s1"), size("3Gi"))
	d.UpdatePersistentVolumeSize(cachetest.Shared("s1"), size("3Gi"))
	d.UpdatePersistentVolumeSize("unknown", size("3Gi"))
	assert.Equal(t, []v1.UniqueVolumeName{cachetest.Shared("s1")}, told.take())
	assert.Equal(t, "3Gi 0", sized("p")+" "+sized("reader"))
}

func TestTheSizeLimitOfALocalVolumeIsThatOfItsPod(t *testing.T) {
	limited := func(s string) v1.Container {
		c := v1.Container{}
		if s != "" {
			c.Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: size(s)}
		}
		return c
	}
	always := v1.ContainerRestartPolicyAlways
	sidecar := limited("1Gi")
	sidecar.RestartPolicy = &always
	own := size("3Gi")
	for name, test := range map[string]struct {
		spec  v1.PodSpec
		limit *v1.EmptyDirVolumeSource
		want  string
	}{
		"none":                    {limit: &v1.EmptyDirVolumeSource{}},
		"its own":                 {limit: &v1.EmptyDirVolumeSource{SizeLimit: &own}, want: "3Gi"},
		"the pod's":               {spec: v1.PodSpec{Containers: []v1.Container{limited("1Gi"), limited("1Gi")}}, limit: &v1.EmptyDirVolumeSource{SizeLimit: &own}, want: "2Gi"},
		"the pod's is greater":    {spec: v1.PodSpec{Containers: []v1.Container{limited("9Gi")}}, limit: &v1.EmptyDirVolumeSource{SizeLimit: &own}, want: "3Gi"},
		"in memory":               {limit: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &own}},
		"what runs before":        {spec: v1.PodSpec{Containers: []v1.Container{limited("1Gi")}, InitContainers: []v1.Container{sidecar, limited("4Gi")}}, limit: &v1.EmptyDirVolumeSource{}, want: "5Gi"},
		"what runs beside":        {spec: v1.PodSpec{Containers: []v1.Container{limited("1Gi")}, InitContainers: []v1.Container{limited("1Gi"), sidecar}}, limit: &v1.EmptyDirVolumeSource{}, want: "2Gi"},
		"with the pod's own need": {spec: v1.PodSpec{Containers: []v1.Container{limited("1Gi")}, Overhead: v1.ResourceList{v1.ResourceEphemeralStorage: size("1Gi")}}, limit: &v1.EmptyDirVolumeSource{}, want: "2Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := newDesired(t, &cachetest.Plugin{Any: true})
			p := cachetest.Pod("p")
			p.Spec = test.spec
			local := volume.NewSpecFromVolume(&v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{EmptyDir: test.limit}})
			name, err := d.AddPodToVolume(cache.AddPodOptions{Pod: p, VolumeSpec: local, OuterVolumeSpecName: "own"})
			require.NoError(t, err)
			row, _ := d.VolumeToMount(name, "p")
			if test.want == "" {
				assert.Nil(t, row.DesiredSizeLimit)
				return
			}
			require.NotNil(t, row.DesiredSizeLimit)
			assert.Equal(t, test.want, row.DesiredSizeLimit.String())
		})
	}
}

// TestALimitIsRenewed: that of the first moment does not stay for good.
func TestALimitIsRenewed(t *testing.T) {
	d, _ := newDesired(t, &cachetest.Plugin{Any: true})
	for _, limit := range []string{"1Gi", "2Gi"} {
		q := size(limit)
		local := volume.NewSpecFromVolume(&v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &q}}})
		name, err := d.AddPodToVolume(cache.AddPodOptions{Pod: cachetest.Pod("p"), VolumeSpec: local, OuterVolumeSpecName: "own", VolumeGidValue: limit})
		require.NoError(t, err)
		row, _ := d.VolumeToMount(name, "p")
		assert.Equal(t, limit, row.DesiredSizeLimit.String())
		assert.Equal(t, limit, row.VolumeGidValue)
	}
}

// TestAVolumeThatComesBackIsNotReported: the list that says so may be older than its return.
func TestAVolumeThatComesBackIsNotReported(t *testing.T) {
	d, _ := newDesired(t, &cachetest.Plugin{})
	name := add(t, d, "p", "s1", "data")
	d.MarkVolumesReportedInUse([]v1.UniqueVolumeName{name})
	add(t, d, "q", "s1", "data")
	row, _ := d.VolumeToMount(name, "q")
	assert.True(t, row.ReportedInUse, "it is the volume that is reported")
	d.DeletePod("p")
	d.DeletePod("q")
	add(t, d, "p", "s1", "data")
	row, _ = d.VolumeToMount(name, "p")
	assert.False(t, row.ReportedInUse)
}

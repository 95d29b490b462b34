package recovery

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
)

// TestAsksForTheSame: needsSame is false as soon as one input differs.
func TestAsksForTheSame(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "uid-a"}}
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	for name, tc := range map[string]struct {
		change func(row *operationexecutor.VolumeToMount, known *journal.SetUp)
		want   bool
	}{
		"nothing":           {func(*operationexecutor.VolumeToMount, *journal.SetUp) {}, true},
		"the SELinux label": {func(row *operationexecutor.VolumeToMount, _ *journal.SetUp) { row.SELinuxLabel = "label" }, false},
		"its names": {func(_ *operationexecutor.VolumeToMount, known *journal.SetUp) {
			known.OuterNames = []string{"own", "too"}
		}, false},
		"the size": {func(row *operationexecutor.VolumeToMount, _ *journal.SetUp) {
			size := resource.MustParse("1Gi")
			row.DesiredSizeLimit = &size
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			row := &operationexecutor.VolumeToMount{PodName: "uid-a", Pod: pod, VolumeSpec: spec, OuterVolumeSpecNames: []string{"own"}}
			known := &journal.SetUp{Namespace: "default", Name: "a", OuterNames: []string{"own"}, Settled: &journal.Settled{Options: "rw"}}
			tc.change(row, known)
			assert.Equal(t, tc.want, needsSame(row, &cache.MountedVolume{MountedVolume: operationexecutor.MountedVolume{VolumeSpec: spec}}, known))
		})
	}
}

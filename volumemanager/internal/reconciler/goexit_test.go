package reconciler

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// goexits ends the goroutine of its first call, as a plugin that it calls may.
type goexits struct {
	calls int
}

func (g *goexits) call() {
	if g.calls++; g.calls == 1 {
		runtime.Goexit()
	}
}

type recordsThatGoexit struct {
	nothing
	goexits *goexits
}

func (r recordsThatGoexit) Reuse(context.Context, *operationexecutor.VolumeToMount, *cache.MountedVolume) bool {
	r.goexits.call()
	return false
}

type actualThatGoexits struct {
	*cache.ActualStateOfWorld
	goexits *goexits
}

func (a actualThatGoexits) MarkVolumeAsAttached(v1.UniqueVolumeName, *volume.Spec, types.NodeName, string) error {
	a.goexits.call()
	return volume.ErrInUse
}

// TestAVolumeIsPlannedAgainAfterAGoexit: a plugin ends the goroutine of a worker in a call that belongs to no operation. The volume is
// planned again, and no operation is left.
func TestAVolumeIsPlannedAgainAfterAGoexit(t *testing.T) {
	for name, arrange := range map[string]func(r *Reconciler, actual *cache.ActualStateOfWorld, g *goexits, found operationexecutor.MountedVolume){
		"before the operation is entered": func(r *Reconciler, actual *cache.ActualStateOfWorld, g *goexits, found operationexecutor.MountedVolume) {
			require.NoError(t, actual.AddReconstructedVolume(operationexecutor.AttachedVolume{VolumeName: found.VolumeName, VolumeSpec: found.VolumeSpec}))
			_, err := actual.AddReconstructedPod(found)
			require.NoError(t, err)
			r.Records = recordsThatGoexit{goexits: g}
		},
		"before the operation begins": func(r *Reconciler, actual *cache.ActualStateOfWorld, g *goexits, _ operationexecutor.MountedVolume) {
			r.Actual = actualThatGoexits{actual, g}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				use := map[podvolume.Key]bool{}
				r, desired, actual := newTestReconciler(t, testPods{use: use})
				pod := testPod("web")
				spec := volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: "example.com/fake"}}})
				volumeName, err := desired.AddPodToVolume(cache.AddPodOptions{Pod: pod, VolumeSpec: spec, OuterVolumeSpecName: "data"})
				require.NoError(t, err)
				use[podvolume.Key{Volume: volumeName, Pod: volume.GetUniquePodName(pod)}] = true
				g := &goexits{}
				arrange(r, actual, g, operationexecutor.MountedVolume{VolumeName: volumeName, PodName: volume.GetUniquePodName(pod), PodUID: pod.UID, VolumeSpec: spec})
				ctx, cancel := context.WithCancel(t.Context())
				r.Start(ctx, r.executor)
				r.AddPod(volume.GetUniquePodName(pod), []v1.UniqueVolumeName{volumeName})
				time.Sleep(2 * retry.Last)
				cancel()
				r.Stop()
				r.Wait()
				assert.Greater(t, g.calls, 1, "it is planned again")
			})
		})
	}
}

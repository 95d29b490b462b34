package operationexecutor_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// hungNodes and hungClaims do not answer until released is closed.
type hungNodes struct {
	operationexecutor.NodeReader
	released <-chan struct{}
}

func (n hungNodes) VolumesAttached(ctx context.Context, name types.NodeName) (map[v1.UniqueVolumeName]string, error) {
	<-n.released
	return n.NodeReader.VolumesAttached(ctx, name)
}

type hungClaims struct {
	operationexecutor.ClaimStatus
	released <-chan struct{}
}

func (c hungClaims) Claim(ctx context.Context, s *volume.Spec) (*v1.PersistentVolumeClaim, error) {
	<-c.released
	return c.ClaimStatus.Claim(ctx, s)
}

func takeOverOf(name string) start {
	return func(w *world) (*operationexecutor.Operation, error) {
		v := w.toMount(name, "p")
		v.ReportedInUse = true
		return w.verifyController(v)
	}
}

func expandInUseOf(name string) start {
	return func(w *world) (*operationexecutor.Operation, error) {
		v := w.toMount(name, "p")
		v.VolumeSpec = claimedSpec(name, "20Gi")
		return w.executor.ExpandInUseVolume(w.t.Context(), v, w.actual, resource.MustParse("10Gi"))
	}
}

func expandOf(name string) start {
	return func(w *world) (*operationexecutor.Operation, error) {
		return w.executor.ExpandVolume(w.t.Context(), operationexecutor.VolumeToExpand{
			VolumeName: volumeName(name), VolumeSpec: claimedSpec(name, "10Gi"),
		})
	}
}

// TestWhatRunsTogetherOfWhatAsksPorts: the first of each pair hangs in a port while the second is started.
func TestWhatRunsTogetherOfWhatAsksPorts(t *testing.T) {
	for name, test := range map[string]struct {
		first, second start
		together      bool
	}{
		"take over twice":                   {takeOverOf("data"), takeOverOf("data"), false},
		"take over two volumes":             {takeOverOf("data"), takeOverOf("other"), true},
		"take over and mount":               {takeOverOf("data"), mountOf("data", "q"), false},
		"expand in use twice":               {expandInUseOf("data"), expandInUseOf("data"), false},
		"expand in use, two volumes":        {expandInUseOf("data"), expandInUseOf("other"), true},
		"expand in use and unmount":         {expandInUseOf("data"), unmountOf("data", "p"), false},
		"expand in use and mount":           {expandInUseOf("data"), mountOf("data", "q"), false},
		"expand the storage twice":          {expandOf("data"), expandOf("data"), false},
		"expand the storage of two volumes": {expandOf("data"), expandOf("other"), true},
		"expand the storage and attach":     {expandOf("data"), attachOn(v1.ReadWriteMany, "b"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				claims := newClaimStatus(claimOf("data", "20Gi", "10Gi"))
				w := newWorld(t, setup{
					attachable: true, stageable: true, abilities: volume.CapExpand | volume.CapNodeExpand,
					generator: func(o *operationexecutor.GeneratorOptions) {
						o.Claims, o.Capacity, o.NodeReader = hungClaims{claims, release}, claims, hungNodes{o.NodeReader, release}
					},
				})
				for _, name := range []string{"data", "other"} {
					w.attached(name)
					require.NoError(t, w.actual.MarkDeviceAsMounted(volumeName(name), "", "/staged", ""))
					require.NoError(t, w.actual.MarkVolumeAsMounted(operationexecutor.MarkVolumeOpts{VolumeName: volumeName(name), PodName: "p", VolumeSpec: spec(name)}))
				}
				_, err := test.first(w)
				require.NoError(t, err)
				synctest.Wait()
				_, err = test.second(w)
				if test.together {
					require.NoError(t, err)
				} else {
					var pending *volume.PendingError
					require.ErrorAs(t, err, &pending)
					assert.Equal(t, volumeName("data"), pending.Volume)
				}
				close(release)
				require.NoError(t, w.executor.Wait(t.Context()))
			})
		})
	}
}

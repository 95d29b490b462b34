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

func modifyOf(name string) start {
	return func(w *world) (*operationexecutor.Operation, error) {
		return w.executor.ModifyVolume(w.t.Context(), operationexecutor.VolumeToModify{
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
		"expand the storage and modify":     {expandOf("data"), modifyOf("data"), false},
		"modify and expand the storage":     {modifyOf("data"), expandOf("data"), false},
		"modify twice":                      {modifyOf("data"), modifyOf("data"), false},
		"modify two volumes":                {modifyOf("data"), modifyOf("other"), true},
		"expand the storage and attach":     {expandOf("data"), attachOn(v1.ReadWriteMany, "b"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				claims := newClaimStatus(claimOf("data", "20Gi", "10Gi"))
				w := newWorld(t, setup{
					attachable: true, stageable: true, abilities: volume.CapExpand | volume.CapNodeExpand | volume.CapModify,
					generator: func(o *operationexecutor.GeneratorOptions) {
						o.Claims, o.Capacity, o.NodeReader = hungClaims{claims, release}, claims, hungNodes{o.NodeReader, release}
						o.Attributes = &attributes{claimStatus: claims}
					},
				})
				for _, name := range []string{"data", "other"} {
					w.attached(name)
					require.NoError(t, w.actual.MarkDeviceAsMounted(volumeName(name), "", "/staged", ""))
					require.NoError(t, w.actual.MarkVolumeAsMounted(operationexecutor.MountedVolume{VolumeName: volumeName(name), PodName: "p", VolumeSpec: spec(name)}))
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

// mutePorts never answer before they must.
type mutePorts struct{}

func (mutePorts) Claim(ctx context.Context, _ *volume.Spec) (*v1.PersistentVolumeClaim, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (mutePorts) SetExpansion(ctx context.Context, _ *v1.PersistentVolumeClaim, _ operationexecutor.Expansion) (*v1.PersistentVolumeClaim, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (mutePorts) VolumesInUse(ctx context.Context, _ types.NodeName) ([]v1.UniqueVolumeName, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (mutePorts) VolumesAttached(ctx context.Context, _ types.NodeName) (map[v1.UniqueVolumeName]string, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (mutePorts) ReportAttached(ctx context.Context, _ types.NodeName) error {
	<-ctx.Done()
	return ctx.Err()
}

func (mutePorts) NodeLabels(ctx context.Context) (map[string]string, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (mutePorts) Intend(ctx context.Context, _ operationexecutor.Intent) error {
	<-ctx.Done()
	return ctx.Err()
}

func (mutePorts) Conclude(context.Context, operationexecutor.Intent, operationexecutor.IntentEnd) error {
	return nil
}

// TestAPortThatNeverAnswersHoldsAKeyNoLongerThanTheDeadline: the operation ends by itself, and no call of the plugin was made.
func TestAPortThatNeverAnswersHoldsAKeyNoLongerThanTheDeadline(t *testing.T) {
	detach := func(w *world) (*operationexecutor.Operation, error) {
		return w.detachFrom(newClusterState(w.history), spec("data"), "a")
	}
	mount := func(w *world) (*operationexecutor.Operation, error) {
		v := w.toMount("data", "p")
		v.VolumeSpec.PersistentVolume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{}}
		return w.executor.MountVolume(w.t.Context(), v, operationexecutor.MountOptions{}, w.actual)
	}
	for name, test := range map[string]struct {
		start start
		mute  func(o *operationexecutor.GeneratorOptions)
	}{
		"who tells the node":        {detach, func(o *operationexecutor.GeneratorOptions) { o.Reporter = mutePorts{} }},
		"what the node uses":        {detach, func(o *operationexecutor.GeneratorOptions) { o.NodeReader = mutePorts{} }},
		"the journal":               {detach, func(o *operationexecutor.GeneratorOptions) { o.Journal = mutePorts{} }},
		"what the node has":         {takeOverOf("data"), func(o *operationexecutor.GeneratorOptions) { o.NodeReader = mutePorts{} }},
		"the node's labels":         {mount, func(o *operationexecutor.GeneratorOptions) { o.NodeLabels = mutePorts{} }},
		"the claim":                 {expandOf("data"), func(o *operationexecutor.GeneratorOptions) { o.Claims = mutePorts{} }},
		"the claim, before a write": {expandOf("data"), func(o *operationexecutor.GeneratorOptions) { o.Claims = muteWrites{o.Claims} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{
					attachable: true, stageable: true, abilities: volume.CapExpand | volume.CapNodeExpand,
					generator: func(o *operationexecutor.GeneratorOptions) {
						claims := newClaimStatus(claimOf("data", "20Gi", "10Gi"))
						o.Claims, o.Capacity = claims, claims
						test.mute(o)
					},
				})
				w.attached("data")
				op := w.ended(test.start(w))
				require.ErrorIs(t, op.Err(), context.DeadlineExceeded)
				assert.Equal(t, operationexecutor.Transient, op.Result().Class)
				assert.False(t, w.executor.IsOperationPending(operationexecutor.Key{Volume: volumeName("data")}))
			})
		})
	}
}

// muteWrites answers what is read and never what is written.
type muteWrites struct{ operationexecutor.ClaimStatus }

func (muteWrites) SetExpansion(ctx context.Context, claim *v1.PersistentVolumeClaim, e operationexecutor.Expansion) (*v1.PersistentVolumeClaim, error) {
	return mutePorts{}.SetExpansion(ctx, claim, e)
}

package persistentvolume

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/expand"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// attributesClass is a class of the fake plugin's driver, whose parameter is its own name.
func attributesClass(name string) *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: "fake.example.com", Parameters: map[string]string{fake.ParameterTier: name},
	}
}

func wants(class string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) { claim.Spec.VolumeAttributesClassName = &class }
}

// A claim whose class of attributes is not there waits for it, with one event.
func TestAClaimWaitsForItsAttributesClass(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), wants("gold")), newClass("x")}, func(t *testing.T, w *world) {
		c := w.settle()
		why, pending := c.Why(store.NameOf(newClaim("c")))
		require.True(t, pending)
		assert.ErrorIs(t, why.Err, store.ErrNotFound)
		assert.Contains(t, volume.WhyUnbound(w.claim("c")), `volume attributes class "gold" does not exist: create it`)
		sleepUntilIdle()
		assert.Equal(t, []string{ReasonProvisioningFailed}, w.reasons())
		assert.Zero(t, w.calls(fake.MethodProvision))
		w.create(attributesClass("gold"))
		idle()
		w.requireBound("c", "pvc-uid-c")
		assert.Equal(t, map[string]string{fake.ParameterTier: "gold"}, w.plugin.Backend().Attributes("pvc-uid-c"))
	})
}

// A claim that is deleted while its volume is modified leaves a volume whose attributes are not known. Events say so for a volume that stays.
func TestAClaimThatIsDeletedDuringAModificationLeavesAnEvent(t *testing.T) {
	for policy, events := range map[v1.PersistentVolumeReclaimPolicy]int{v1.PersistentVolumeReclaimRetain: 1, v1.PersistentVolumeReclaimDelete: 0} {
		t.Run(string(policy), func(t *testing.T) {
			inWorld(t, objectList{newClass("x", func(c *storagev1.StorageClass) { c.ReclaimPolicy = &policy }), newClaim("c", ofClass("x"), wants("slow")), attributesClass("slow")}, func(t *testing.T, w *world) {
				w.settle()
				w.requireBound("c", "pvc-uid-c")
				claim := w.claim("c")
				claim.Status.ModifyVolumeStatus = &v1.ModifyVolumeStatus{
					Status: v1.PersistentVolumeClaimModifyVolumeInProgress, TargetVolumeAttributesClassName: "fast",
				}
				_, err := w.store.Update(t.Context(), claim)
				require.NoError(t, err)
				w.delete(claim)
				var said []string
				for _, e := range w.events.Events() {
					if e.Reason == operationexecutor.ReasonVolumeModifyFailed {
						said = append(said, e.Message)
					}
				}
				require.Len(t, said, events)
				if events > 0 {
					assert.Contains(t, said[0], `may have attributes of class "fast", and its spec names class "slow"`)
					assert.Equal(t, ptr("slow"), w.volume("pvc-uid-c").Spec.VolumeAttributesClassName)
				}
			})
		})
	}
}

// A claim is refused whose volume would not have what its class says.
func TestAnAttributesClassThatCannotBeMetIsRefused(t *testing.T) {
	foreign := attributesClass("gold")
	foreign.DriverName = "other.example.com"
	unknown := attributesClass("gold")
	unknown.Parameters = map[string]string{"colour": "red"}
	for name, test := range map[string]struct {
		class   *storagev1.VolumeAttributesClass
		without volume.Capabilities
		calls   int
		message string
	}{
		"a class of another driver":     {foreign, 0, 0, `is for driver "other.example.com"`},
		"a plugin that takes none":      {attributesClass("gold"), volume.CapModify, 0, "takes the parameters of none"},
		"a parameter that is not known": {unknown, 0, 0, `parameter "colour" is not known`},
	} {
		t.Run(name, func(t *testing.T) {
			class := newClass("x")
			class.Provisioner = "example.com/limited"
			if test.class == foreign || test.class == unknown {
				class = newClass("x")
			}
			inWorld(t, objectList{newClaim("c", ofClass("x"), wants("gold")), class, test.class}, func(t *testing.T, w *world) {
				limited := fake.NewPlugin(fake.PluginOptions{Name: "example.com/limited", Mounter: noMounts{}, Without: test.without})
				require.NoError(t, w.plugins.InitPlugins(t.Context(), limited))
				c := w.settle()
				why, pending := c.Why(store.NameOf(newClaim("c")))
				require.True(t, pending)
				assert.ErrorIs(t, why.Err, volume.ErrInfeasible)
				assert.Contains(t, why.Message, test.message)
				assert.Zero(t, w.calls(fake.MethodProvision))
				assert.Empty(t, w.plugin.Backend().Handles())
				w.requireNoVolume("pvc-uid-c")
			})
		})
	}
}

// A volume that an interrupted attempt has made gets the attributes of the class that its claim names now.
func TestAClaimThatNamesAnotherAttributesClassWhileItsVolumeIsMade(t *testing.T) {
	inWorld(t, objectList{newClass("x"), attributesClass("slow"), attributesClass("fast")}, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodProvision, fake.FailAfter(volume.Uncertain(errCrashed)))
		w.settle()
		w.create(newClaim("c", ofClass("x"), wants("slow")))
		idle()
		require.Equal(t, map[string]string{fake.ParameterTier: "slow"}, w.plugin.Backend().Attributes("pvc-uid-c"))
		changed := w.claim("c")
		changed.Spec.VolumeAttributesClassName = ptr("fast")
		_, err := store.Update(t.Context(), w.store, changed)
		require.NoError(t, err)
		sleepUntilIdle()
		w.requireBound("c", "pvc-uid-c")
		assert.Equal(t, ptr("fast"), w.volume("pvc-uid-c").Spec.VolumeAttributesClassName)
		assert.Equal(t, map[string]string{fake.ParameterTier: "fast"}, w.plugin.Backend().Attributes("pvc-uid-c"))
	})
}

// The refusal of one class of attributes says nothing about an earlier attempt with another: its storage is found when the claim names a
// class that can be had, and deleted when the claim is.
func TestARefusedAttributesClassLosesNoStorage(t *testing.T) {
	broken := attributesClass("broken")
	broken.Parameters = map[string]string{fake.ParameterTier: ""}
	for name, end := range map[string]func(t *testing.T, w *world){
		"the claim is deleted": func(t *testing.T, w *world) {
			w.delete(newClaim("c"))
			sleepUntilIdle()
			w.requireGone("c")
			w.requireNoVolume("pvc-uid-c")
			assert.Empty(t, w.plugin.Backend().Handles())
		},
		"the claim names another class": func(t *testing.T, w *world) {
			changed := w.claim("c")
			changed.Spec.VolumeAttributesClassName = ptr("slow")
			_, err := store.Update(t.Context(), w.store, changed)
			require.NoError(t, err)
			sleepUntilIdle()
			w.requireBound("c", "pvc-uid-c")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, objectList{newClass("x"), attributesClass("slow"), broken}, func(t *testing.T, w *world) {
				w.plugin.Inject(fake.MethodProvision, fake.FailAfter(volume.Uncertain(errCrashed)))
				w.settle()
				w.create(newClaim("c", ofClass("x"), wants("slow")))
				idle()
				changed := w.claim("c")
				changed.Spec.VolumeAttributesClassName = ptr("broken")
				_, err := store.Update(t.Context(), w.store, changed)
				require.NoError(t, err)
				sleepUntilIdle()
				require.Equal(t, []string{"pvc-uid-c"}, w.plugin.Backend().Handles())
				require.Contains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
				end(t, w)
			})
		})
	}
}

// The controller that binds leaves a claim alone whose class changes, whatever its volume has meanwhile.
func TestABoundClaimIsModifiedBesideThisController(t *testing.T) {
	all := objectList{newClaim("c", ofClass("x"), wants("slow")), newClass("x"), attributesClass("slow"), attributesClass("fast")}
	inWorld(t, all, func(t *testing.T, w *world) {
		w.settle()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- expand.New(w.plugins, w.store, expand.Options{Events: w.events}).Run(ctx) }()
		defer func() { cancel(); require.NoError(t, <-ended) }()
		for _, class := range []string{"fast", "slow"} {
			changed := w.claim("c")
			changed.Spec.VolumeAttributesClassName = &class
			_, err := store.Update(t.Context(), w.store, changed)
			require.NoError(t, err)
			sleepUntilIdle()
			w.requireBound("c", "pvc-uid-c")
			assert.Equal(t, &class, w.claim("c").Status.CurrentVolumeAttributesClassName)
			assert.Equal(t, &class, w.volume("pvc-uid-c").Spec.VolumeAttributesClassName)
			assert.Equal(t, class, w.plugin.Backend().Attributes("pvc-uid-c")[fake.ParameterTier])
		}
		assert.Equal(t, 1, w.calls(fake.MethodProvision))
	})
}

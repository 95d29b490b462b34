package store_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

const (
	applyClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: example.com/disk
`
	applyClaim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, labels: {app: web}}
spec:
  storageClassName: fast
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
status: {phase: Bound}
`
	applyPod = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: main, image: none, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`
)

// decoded returns the objects of manifests.
func decoded(t *testing.T, manifests ...string) []runtime.Object {
	t.Helper()
	objects, err := store.Decode(strings.NewReader(strings.Join(manifests, "\n---\n")))
	require.NoError(t, err)
	return objects
}

// apply applies manifests and returns what was done, in order, as "action kind name".
func apply(t *testing.T, s store.Store, manifests ...string) ([]string, error) {
	t.Helper()
	applied, err := store.Apply(t.Context(), s, decoded(t, manifests...))
	var done []string
	for _, one := range applied {
		done = append(done, string(one.Action)+" "+one.Object.GetObjectKind().GroupVersionKind().Kind+" "+one.Object.GetName())
	}
	return done, err
}

func TestApplyCreatesWhatIsMissingAndUpdatesWhatIsThere(t *testing.T) {
	s := store.NewMemory(store.MemoryOptions{})
	done, err := apply(t, s, applyPod, applyClaim, applyClass)
	require.NoError(t, err)
	assert.Equal(t, []string{"created StorageClass fast", "created PersistentVolumeClaim data", "created Pod web"}, done,
		"what is named comes before what names it")

	done, err = apply(t, s, applyPod, applyClaim, applyClass)
	require.NoError(t, err)
	assert.Equal(t, []string{"unchanged StorageClass fast", "unchanged PersistentVolumeClaim data", "unchanged Pod web"}, done)

	done, err = apply(t, s, strings.ReplaceAll(applyClaim, "1Gi", "2Gi"), applyClass+"allowVolumeExpansion: true\n")
	require.NoError(t, err)
	assert.Equal(t, []string{"updated StorageClass fast", "updated PersistentVolumeClaim data"}, done)
	claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", "data")
	require.NoError(t, err)
	assert.Equal(t, "2Gi", claim.Spec.Resources.Requests.Storage().String())
}

// What controllers have written is not in any manifest, and stays.
func TestApplyLeavesWhatControllersHaveWritten(t *testing.T) {
	s := store.NewMemory(store.MemoryOptions{})
	_, err := apply(t, s, applyClaim)
	require.NoError(t, err)
	claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", "data")
	require.NoError(t, err)
	assert.Empty(t, claim.Status.Phase, "the status of a manifest is none")
	claim.Spec.VolumeName, claim.Status.Phase = "disk-1", v1.ClaimBound
	claim.Finalizers, claim.Annotations = []string{"kubernetes.io/pvc-protection"}, map[string]string{"bound": "yes"}
	before, err := store.Update(t.Context(), s, claim)
	require.NoError(t, err)

	manifest := strings.ReplaceAll(applyClaim, "{app: web}", "{app: db, tier: back}")
	_, err = apply(t, s, strings.ReplaceAll(manifest, "status: {phase: Bound}", "status: {phase: Lost}"))
	require.NoError(t, err)
	after, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", "data")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"app": "db", "tier": "back"}, after.Labels)
	after.Labels, after.ResourceVersion = before.Labels, before.ResourceVersion
	assert.Equal(t, before, after)
}

// A change that would make the object another one is refused, and nothing of it is written.
func TestApplyRefusesWhatCannotChange(t *testing.T) {
	const volume = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk-1}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /data}}
`
	const fixed = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fixed}\nimmutable: true\ndata: {key: value}\n"
	const attributes = "apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {name: gold}\ndriverName: ram.example.com\nparameters: {tier: gold}\n"
	for name, c := range map[string]struct{ manifest, old, changed, field string }{
		"parameters of attributes": {attributes, "tier: gold", "tier: iron", "parameters"},
		"class of a claim":         {applyClaim, "storageClassName: fast", "storageClassName: slow", "spec.storageClassName"},
		"source of a volume":       {volume, "path: /data", "path: /etc", "spec.hostPath"},
		"another source":           {volume, "hostPath: {path: /data}", "nfs: {server: s, path: /}", "spec.nfs"},
		"provisioner of a class":   {applyClass, "example.com/disk", "example.com/other", "provisioner"},
		"volume of a pod":          {applyPod, "claimName: data", "claimName: other", "spec.volumes"},
		"immutable config map":     {fixed, "value", "other", "data"},
		"a key that is taken away": {fixed, "data: {key: value}", "data: {}", "data"},
	} {
		t.Run(name, func(t *testing.T) {
			s := store.NewMemory(store.MemoryOptions{})
			applied, err := store.Apply(t.Context(), s, decoded(t, c.manifest))
			require.NoError(t, err)
			done, err := apply(t, s, strings.ReplaceAll(c.manifest, c.old, c.changed))
			require.ErrorIs(t, err, store.ErrInvalid)
			require.ErrorContains(t, err, c.field+" cannot change")
			assert.Empty(t, done)
			key, err := store.KeyOf(applied[0].Object)
			require.NoError(t, err)
			there, err := s.Get(t.Context(), key)
			require.NoError(t, err)
			assert.Equal(t, runtime.Object(applied[0].Object), there)
		})
	}
}

func TestApplyReplacesTheDataOfAConfigMap(t *testing.T) {
	s := store.NewMemory(store.MemoryOptions{})
	const settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"
	_, err := apply(t, s, settings+"data: {a: one, b: two}\n")
	require.NoError(t, err)
	_, err = apply(t, s, settings+"data: {b: three}\n")
	require.NoError(t, err)
	found, err := store.Getter{Store: s}.ConfigMap(t.Context(), "default", "settings")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"b": "three"}, found.Data)
}

// One that is being deleted, or is another object of the same name, is left alone; the others are applied.
func TestApplyLeavesWhatIsAnotherObject(t *testing.T) {
	s := store.NewMemory(store.MemoryOptions{})
	_, err := apply(t, s, strings.ReplaceAll(applyClaim, "{name: data,", "{name: data, finalizers: [a/b],"), applyPod)
	require.NoError(t, err)
	claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", "data")
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), s, claim))

	done, err := apply(t, s, applyClaim, strings.ReplaceAll(applyPod, "{name: web}", "{name: web, uid: other}"), applyClass)
	require.ErrorIs(t, err, store.ErrConflict)
	require.ErrorContains(t, err, `"default/data" is being deleted`)
	require.ErrorContains(t, err, `the manifest says "other"`)
	assert.Equal(t, []string{"created StorageClass fast"}, done)

	done, err = apply(t, s, applyClass, applyClass)
	require.ErrorIs(t, err, store.ErrAlreadyExists)
	assert.Empty(t, done)
}

// busyStore is a store in which another program writes an object between each read and the update that follows, some times.
type busyStore struct {
	store.Store
	others int
}

func (s *busyStore) Update(ctx context.Context, object runtime.Object) (runtime.Object, error) {
	if s.others == 0 {
		return s.Store.Update(ctx, object)
	}
	s.others--
	key, err := store.KeyOf(object)
	if err != nil {
		return nil, err
	}
	there, err := s.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	claim := there.(*v1.PersistentVolumeClaim)
	claim.Spec.VolumeName = "disk-1"
	if _, err := s.Store.Update(ctx, claim); err != nil {
		return nil, err
	}
	return s.Store.Update(ctx, object)
}

func TestApplyReadsAgainWhatOthersHaveChanged(t *testing.T) {
	s := &busyStore{Store: store.NewMemory(store.MemoryOptions{})}
	_, err := apply(t, s, applyClaim)
	require.NoError(t, err)
	s.others = 3
	done, err := apply(t, s, strings.ReplaceAll(applyClaim, "1Gi", "2Gi"))
	require.NoError(t, err)
	assert.Equal(t, []string{"updated PersistentVolumeClaim data"}, done)
	claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", "data")
	require.NoError(t, err)
	assert.Equal(t, "disk-1", claim.Spec.VolumeName, "what the other wrote is kept")

	s.others = 1000
	_, err = apply(t, s, strings.ReplaceAll(applyClaim, "1Gi", "3Gi"))
	require.ErrorIs(t, err, store.ErrConflict, "it comes to an end")
}

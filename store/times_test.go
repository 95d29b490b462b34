package store_test

import (
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
)

// TestTimesAreThoseThatOutliveARestart: JSON has seconds and microseconds alone, and no zone but UTC.
func TestTimesAreThoseThatOutliveARestart(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 2, 1, 987_654_321, time.FixedZone("elsewhere", 3600))
	path := filepath.Join(t.TempDir(), "store")
	disk := openDisk(t, path, store.DiskOptions{})
	for _, s := range []store.Store{store.NewMemory(store.MemoryOptions{}), disk} {
		created := metav1.NewTime(at)
		pod := &v1.Pod{ObjectMeta: objectMeta("default", "pod", "")}
		pod.CreationTimestamp, pod.Status.StartTime = created, &created
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, LastTransitionTime: created}, {Type: v1.PodScheduled}}
		stored, err := store.Create(t.Context(), s, pod)
		require.NoError(t, err)
		for _, got := range []metav1.Time{stored.CreationTimestamp, *stored.Status.StartTime, stored.Status.Conditions[0].LastTransitionTime} {
			assert.Equal(t, at.Truncate(time.Second).Local(), got.Time)
		}
		assert.True(t, stored.Status.Conditions[1].LastTransitionTime.IsZero())
		assert.Equal(t, at, pod.CreationTimestamp.Time, "what the caller gave stays as it is")

		renewed := metav1.NewMicroTime(at)
		lease, err := store.Create(t.Context(), s, &coordinationv1.Lease{
			ObjectMeta: objectMeta("default", "lease", ""), Spec: coordinationv1.LeaseSpec{RenewTime: &renewed},
		})
		require.NoError(t, err)
		assert.Equal(t, at.Truncate(time.Microsecond).Local(), lease.Spec.RenewTime.Time)
	}
	_, err := store.Create(t.Context(), disk, &v1.Pod{ObjectMeta: objectMeta("default", "new", "")})
	require.NoError(t, err)
	before, _, err := store.ListOf[*v1.Pod](t.Context(), disk, "default")
	require.NoError(t, err)
	require.NoError(t, disk.Close())
	after, _, err := store.ListOf[*v1.Pod](t.Context(), openDisk(t, path, store.DiskOptions{}), "default")
	require.NoError(t, err)
	require.Len(t, after, 2)
	assert.True(t, reflect.DeepEqual(before, after), "%v\n%v", before, after)
}

// TestNoKindHasTimesInAMap: a store does not look for them there.
func TestNoKindHasTimesInAMap(t *testing.T) {
	scheme := store.NewScheme()
	seen := map[reflect.Type]bool{}
	for _, kind := range store.Kinds() {
		obj, err := scheme.New(kind)
		require.NoError(t, err)
		requireNoTimesInMaps(t, reflect.TypeOf(obj), kind.Kind, seen)
	}
}

func requireNoTimesInMaps(t *testing.T, in reflect.Type, path string, seen map[reflect.Type]bool) {
	t.Helper()
	if seen[in] {
		return
	}
	seen[in] = true
	switch in.Kind() {
	case reflect.Map:
		require.False(t, hasTime(in.Elem(), map[reflect.Type]bool{}), path)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		requireNoTimesInMaps(t, in.Elem(), path, seen)
	case reflect.Struct:
		for i := range in.NumField() {
			requireNoTimesInMaps(t, in.Field(i).Type, path+"."+in.Field(i).Name, seen)
		}
	default:
	}
}

// hasTime reports whether a type is a time, or has one in it.
func hasTime(in reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[in] {
		return false
	}
	seen[in] = true
	switch in.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return hasTime(in.Elem(), seen)
	case reflect.Struct:
		if in == reflect.TypeFor[time.Time]() {
			return true
		}
		for i := range in.NumField() {
			if hasTime(in.Field(i).Type, seen) {
				return true
			}
		}
	default:
	}
	return false
}

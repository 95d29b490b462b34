package store_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
)

func objectMeta(namespace, name, version string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: version}
}

func TestEveryKindHasItsType(t *testing.T) {
	scheme := store.NewScheme()
	for _, kind := range store.Kinds() {
		obj, err := scheme.New(kind)
		require.NoError(t, err)
		got, err := store.KindOf(obj)
		require.NoError(t, err)
		assert.Equal(t, kind, got)
		_, err = store.Namespaced(kind)
		require.NoError(t, err)
	}
}

func TestOtherTypesAreRefused(t *testing.T) {
	_, err := store.KindOf(&v1.Service{})
	require.ErrorIs(t, err, store.ErrInvalid)
	require.ErrorContains(t, err, "PersistentVolumeClaim", "the message names the kinds that can be used")
	_, err = store.KindOf(nil)
	require.ErrorIs(t, err, store.ErrInvalid)
	_, err = store.KeyOf((*v1.Pod)(nil))
	require.ErrorIs(t, err, store.ErrInvalid)
	_, err = store.Namespaced(v1.SchemeGroupVersion.WithKind("Service"))
	require.ErrorIs(t, err, store.ErrInvalid)
}

func TestKeyValidate(t *testing.T) {
	tests := map[string]struct {
		key store.Key
		ok  bool
	}{
		"a claim":                  {store.Key{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: "data-0"}, true},
		"a claim without":          {store.Key{Kind: store.PersistentVolumeClaims, Name: "data"}, false},
		"a volume":                 {store.Key{Kind: store.PersistentVolumes, Name: "disk.1"}, true},
		"a volume in a namespace":  {store.Key{Kind: store.PersistentVolumes, Namespace: "default", Name: "disk"}, false},
		"no name":                  {store.Key{Kind: store.PersistentVolumes}, false},
		"a name that climbs":       {store.Key{Kind: store.PersistentVolumes, Name: ".."}, false},
		"a name with a slash":      {store.Key{Kind: store.PersistentVolumes, Name: "a/b"}, false},
		"a namespace with a slash": {store.Key{Kind: store.Pods, Namespace: "a/b", Name: "web"}, false},
		"a name with a capital":    {store.Key{Kind: store.PersistentVolumes, Name: "Disk"}, false},
		"no kind":                  {store.Key{Name: "disk"}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.key.Validate()
			if tt.ok {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, store.ErrInvalid)
		})
	}
}

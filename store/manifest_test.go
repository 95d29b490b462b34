package store_test

import (
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

const claimYAML = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
`

func TestDecodeReadsEveryFormOfManifest(t *testing.T) {
	tests := map[string]struct {
		manifest string
		want     []string // kind/name
	}{
		"nothing":       {"", nil},
		"only comments": {"# one\n---\n# two\n---\n", nil},
		"one document":  {claimYAML, []string{"PersistentVolumeClaim/data"}},
		"several, with comments and empty ones": {
			"---\n# first\n" + claimYAML + "---\n\n--- # nothing\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\n",
			[]string{"PersistentVolumeClaim/data", "Pod/web"},
		},
		"a list": {
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: a}}\n" +
				"- {apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fast}, provisioner: example.com/x}\n",
			[]string{"Node/a", "StorageClass/fast"},
		},
		"JSON": {
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}`, []string{"Pod/web"},
		},
		"JSON, several, indented": {
			"  {\"apiVersion\":\"v1\",\n\t\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}\n" +
				`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}` + "\n",
			[]string{"Pod/a", "Pod/b"},
		},
		"braces that are YAML": {"{apiVersion: v1, kind: Pod, metadata: {name: web}}", []string{"Pod/web"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects, err := store.Decode(strings.NewReader(tt.manifest))
			require.NoError(t, err)
			var got []string
			for _, obj := range objects {
				key, err := store.KeyOf(obj)
				require.NoError(t, err)
				got = append(got, key.Kind.Kind+"/"+key.Name)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestDecodeKeepsTheFields(t *testing.T) {
	objects, err := store.Decode(strings.NewReader(claimYAML))
	require.NoError(t, err)
	claim, ok := objects[0].(*v1.PersistentVolumeClaim)
	require.True(t, ok)
	request := claim.Spec.Resources.Requests[v1.ResourceStorage]
	assert.Equal(t, int64(64<<20), request.Value())
	assert.Equal(t, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, claim.Spec.AccessModes)
}

func TestDecodeSaysWhatIsWrongAndWhere(t *testing.T) {
	tests := map[string]struct {
		manifest             string
		document, line, item int
		says                 string
	}{
		"unknown field in the second document": {
			claimYAML + "---\n# about\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {volume: []}\n", 2, 9, 0, "spec.volume",
		},
		"unknown kind": {
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n", 1, 1, 0, "PersistentVolumeClaim (v1)",
		},
		"known kind of another version": {
			"apiVersion: v1\nkind: StorageClass\nmetadata: {name: web}\n", 1, 1, 0, "StorageClass (storage.k8s.io/v1)",
		},
		"no kind":        {"metadata: {name: web}\n", 1, 1, 0, "apiVersion and a kind"},
		"no object":      {"just text\n", 1, 1, 0, "cannot unmarshal"},
		"bad YAML":       {"\n\nkind: [\n", 1, 3, 0, "yaml"},
		"field twice":    {"apiVersion: v1\nkind: Pod\nkind: Pod\nmetadata: {name: web}\n", 1, 1, 0, "already set"},
		"bad JSON":       {`{"apiVersion":"v1",`, 1, 1, 0, ""},
		"second of JSON": {"{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}\n{\"kind\":\"Pod\"}", 2, 2, 0, "apiVersion"},
		"item of a list": {
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: a}}\n- {apiVersion: v1, kind: Node, wrong: 1}\n",
			1, 1, 2, "wrong",
		},
		"unknown field of a list": {"apiVersion: v1\nkind: List\nitem: []\n", 1, 1, 0, "item"},
		"a quantity that is none": {strings.Replace(claimYAML, "64Mi", "64Mega", 1), 1, 1, 0, "quantities"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects, err := store.Decode(strings.NewReader(tt.manifest))
			require.ErrorIs(t, err, store.ErrInvalid)
			assert.Nil(t, objects)
			var manifest *store.ManifestError
			require.ErrorAs(t, err, &manifest)
			assert.Equal(t, tt.document, manifest.Document, "document")
			assert.Equal(t, tt.line, manifest.Line, "line")
			assert.Equal(t, tt.item, manifest.Item, "item")
			assert.ErrorContains(t, err, tt.says)
		})
	}
}

func TestDecodeReturnsTheErrorOfTheReader(t *testing.T) {
	broken := errors.New("broken")
	_, err := store.Decode(iotest.ErrReader(broken))
	require.ErrorIs(t, err, broken)
}

func FuzzDecode(f *testing.F) {
	f.Add(claimYAML)
	f.Add("---\n{}\n--- \n")
	f.Add(`{"kind":"List","apiVersion":"v1","items":[{}]}{`)
	f.Fuzz(func(t *testing.T, manifest string) {
		objects, err := store.Decode(strings.NewReader(manifest))
		if err != nil && objects != nil {
			t.Fatal("objects beside an error")
		}
		for _, obj := range objects {
			if _, err := store.KeyOf(obj); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestLoad(t *testing.T) {
	decode := func(manifest string) []runtime.Object {
		objects, err := store.Decode(strings.NewReader(manifest))
		require.NoError(t, err)
		return objects
	}

	t.Run("fills a store", func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		created, err := store.Load(t.Context(), s, append(decode(claimYAML), &storagev1.StorageClass{
			ObjectMeta: objectMeta("", "fast", "77"),
		}))
		require.NoError(t, err)
		require.Len(t, created, 2)
		claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", "data")
		require.NoError(t, err)
		assert.Equal(t, created[0], runtime.Object(claim))
		_, err = store.Get[*storagev1.StorageClass](t.Context(), s, "", "fast")
		require.NoError(t, err, "no namespace is put on an object of the whole cluster")
	})
	t.Run("creates nothing when two have one name", func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		named := &v1.PersistentVolumeClaim{ObjectMeta: objectMeta("default", "data", "")}
		_, err := store.Load(t.Context(), s, append(decode(claimYAML), named))
		require.ErrorIs(t, err, store.ErrAlreadyExists)
		assertEmpty(t, s)
	})
	t.Run("creates nothing when one is malformed", func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		_, err := store.Load(t.Context(), s, append(decode(claimYAML), &v1.Pod{}))
		require.ErrorIs(t, err, store.ErrInvalid)
		assertEmpty(t, s)
	})
	t.Run("says which one is there already", func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		_, err := store.Load(t.Context(), s, decode(claimYAML))
		require.NoError(t, err)
		_, err = store.Load(t.Context(), s, decode(claimYAML))
		require.ErrorIs(t, err, store.ErrAlreadyExists)
		require.ErrorContains(t, err, "default/data")
	})
}

func assertEmpty(t *testing.T, s store.Store) {
	t.Helper()
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](t.Context(), s, "")
	require.NoError(t, err)
	assert.Empty(t, claims)
}

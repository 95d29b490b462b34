package crashstore_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/store"
)

func TestNothingIsWrittenAfterTheCrash(t *testing.T) {
	for arrives, want := range map[bool][]string{false: {"a"}, true: {"a", "b"}} {
		under := store.NewMemory(store.MemoryOptions{})
		s := crashstore.New(under, crashstore.Crash{After: 1, Arrives: arrives})
		for _, name := range []string{"a", "b", "c"} {
			_, err := s.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			if name == "a" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, crashstore.ErrCrashed)
			}
			assert.Equal(t, name != "a", s.IsCrashed())
		}
		require.ErrorIs(t, s.Delete(t.Context(), store.Key{}, store.Preconditions{}), crashstore.ErrCrashed)
		assert.Equal(t, 4, s.Steps())
		nodes, _, err := store.ListOf[*v1.Node](t.Context(), under, "")
		require.NoError(t, err)
		var names []string
		for _, node := range nodes {
			names = append(names, node.Name)
		}
		assert.Equal(t, want, names)
	}
}

package scheduling

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// withoutAttributes is a store that does not serve VolumeAttributesClasses.
type withoutAttributes struct{ store.Store }

func (s withoutAttributes) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if kind == store.VolumeAttributesClasses {
		return store.List{}, errors.New("the server could not find the requested resource")
	}
	return s.Store.List(ctx, kind, namespace)
}

// TestAStoreMayHaveNoVolumeAttributesClasses: the scheduler becomes ready without them, and refuses only the claim that names one.
func TestAStoreMayHaveNoVolumeAttributesClasses(t *testing.T) {
	inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("made", makes), newClaim("data", ofClass("made")), newClaim("gold", ofClass("made"), attributes("gold")))), func(w *world) {
		w.stop()
		w.store = withoutAttributes{w.store}
		w.start(Options{})
		w.requireFits(newPod("p", "data"), everywhere...)
		require.Equal(t, NoAttributesClass, w.requireRefused(newPod("p", "gold"), "node-1", NoAttributesClass).Reason)
	})
}

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/examples/internal/show"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/store"
)

// A claim that is deleted beneath a pod that runs keeps its volume and its data, as long as the pod's object is there and as long as
// the manager has it mounted. The pods here have no node name and no status.
func TestDataStaysBeneathAPodWhoseClaimIsDeleted(t *testing.T) {
	mounttest.RequireRoot(t) // Without it the pod has no claims: their devices need it.
	for name, early := range map[string]func(t *testing.T, a *agent){
		"the pod's object is there": func(*testing.T, *agent) {},
		"the pod's object is gone":  func(t *testing.T, a *agent) { require.NoError(t, a.deletePods(t.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			a := startSoak(t)
			ready, err := a.setUp(t.Context(), defaultTimeout)
			require.NoError(t, err)
			letters := writeToClaims(t, a, ready)
			require.NotEmpty(t, letters)
			before, _, err := store.ListOf[*v1.PersistentVolumeClaim](t.Context(), a.store, metav1.NamespaceAll)
			require.NoError(t, err)
			early(t, a)

			// The claims are marked as deleted now, and the controller has time for a mistake.
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err = a.deleteClaims(ctx, defaultTimeout)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			for path, text := range letters {
				got, err := os.ReadFile(path)
				require.NoError(t, err)
				assert.Equal(t, text, string(got))
			}
			claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](t.Context(), a.store, metav1.NamespaceAll)
			require.NoError(t, err)
			assert.Len(t, claims, len(before))
			for _, claim := range claims {
				assert.Equal(t, v1.ClaimBound, claim.Status.Phase)
			}

			require.NoError(t, a.tearDown(t.Context(), defaultTimeout))
			require.NoError(t, a.deletePods(t.Context()))
			_, err = a.deleteClaims(t.Context(), defaultTimeout)
			require.NoError(t, err)
			require.NoError(t, a.stop(t.Context()))
			require.NoError(t, prove(t.Context(), a.root, nil, a.out))
		})
	}
}

// writeToClaims writes a file into each of the volumes that comes from a claim, and returns what is in which.
func writeToClaims(t *testing.T, a *agent, volumes []show.Row) map[string]string {
	t.Helper()
	letters := map[string]string{}
	for _, vol := range a.pods[0].Spec.Volumes {
		for _, ready := range volumes {
			info, err := os.Stat(ready.Path)
			if vol.PersistentVolumeClaim == nil || ready.ReadOnly || ready.Volume != vol.Name || err != nil || !info.IsDir() {
				continue
			}
			path := filepath.Join(ready.Path, "letter")
			letters[path] = "of " + vol.Name
			require.NoError(t, os.WriteFile(path, []byte(letters[path]), 0o600))
		}
	}
	return letters
}

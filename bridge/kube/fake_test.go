package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/volumekit/volumekit/bridge/kube"
	"github.com/volumekit/volumekit/bridge/kube/internal/servertest"
	"github.com/volumekit/volumekit/store"
)

// These need a server that does as it is told.

func TestRules(t *testing.T) {
	for _, c := range suite() {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newStore(t)
			c.run(t, s)
		})
	}
}

func TestNew(t *testing.T) {
	_, err := kube.New(nil, kube.Options{})
	require.ErrorIs(t, err, store.ErrInvalid)
}

var resourceOfVolumes = schema.GroupResource{Resource: "persistentvolumes"}

func TestErrors(t *testing.T) {
	key := store.Key{Kind: store.PersistentVolumes, Name: "disk"}
	for name, c := range map[string]struct {
		answer error
		means  error
	}{
		"404":                  {apierrors.NewNotFound(resourceOfVolumes, "disk"), store.ErrNotFound},
		"409, a name":          {apierrors.NewAlreadyExists(resourceOfVolumes, "disk"), store.ErrAlreadyExists},
		"409, a version":       {apierrors.NewConflict(resourceOfVolumes, "disk", errors.New("old")), store.ErrConflict},
		"410":                  {apierrors.NewResourceExpired("old"), store.ErrCompacted},
		"410, gone":            {apierrors.NewGone("old"), store.ErrCompacted}, //nolint:staticcheck // Old servers say so.
		"504, of the future":   {tooLarge(), store.ErrCompacted},
		"422":                  {apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolume"}, "disk", nil), store.ErrInvalid},
		"400":                  {apierrors.NewBadRequest("bad"), store.ErrInvalid},
		"413":                  {apierrors.NewRequestEntityTooLargeError("large"), store.ErrInvalid},
		"401":                  {apierrors.NewUnauthorized("who"), kube.ErrDenied},
		"403":                  {apierrors.NewForbidden(resourceOfVolumes, "disk", errors.New("no role")), kube.ErrDenied},
		"429":                  {apierrors.NewTooManyRequests("busy", 1), nil},
		"500":                  {apierrors.NewInternalError(errors.New("broken")), nil},
		"503":                  {apierrors.NewServiceUnavailable("starting"), nil},
		"504":                  {apierrors.NewTimeoutError("slow", 1), nil},
		"no answer":            {errors.New("connection refused"), nil},
		"the end of a context": {context.DeadlineExceeded, nil},
	} {
		t.Run(name, func(t *testing.T) {
			clients := &servertest.Clients{}
			clients.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.answer })
			s, err := kube.New(clients, kube.Options{})
			require.NoError(t, err)
			pv := newVolume("disk")
			_, getErr := s.Get(t.Context(), key)
			_, createErr := s.Create(t.Context(), pv)
			pv.ResourceVersion = "1"
			_, updateErr := s.Update(t.Context(), pv)
			_, listErr := s.List(t.Context(), store.PersistentVolumes, "")
			_, watchErr := s.Watch(t.Context(), store.PersistentVolumes, "", "1")
			deleteErr := s.Delete(t.Context(), key, store.Preconditions{})
			for _, err := range []error{getErr, createErr, updateErr, listErr, watchErr, deleteErr} {
				require.ErrorIs(t, err, c.answer, "what the server said is to be read")
				requireSentinel(t, err, c.means)
			}
		})
	}
}

func tooLarge() error {
	err := apierrors.NewTimeoutError("too large resource version", 1)
	err.ErrStatus.Code = http.StatusGatewayTimeout
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

// requireSentinel fails unless err matches that sentinel alone, or none.
func requireSentinel(t *testing.T, err, want error) {
	t.Helper()
	for _, sentinel := range []error{
		store.ErrNotFound, store.ErrAlreadyExists, store.ErrConflict, store.ErrCompacted, store.ErrInvalid, kube.ErrDenied,
	} {
		require.Equal(t, errors.Is(want, sentinel), errors.Is(err, sentinel), "%v matches %v", err, sentinel)
	}
}

// requests returns what was asked of the server from now on: "verb", or "verb status".
func requests(clients *servertest.Clients) func() []string {
	clients.ClearActions()
	return func() []string {
		var asked []string
		for _, a := range clients.Actions() {
			text := a.GetVerb()
			if a.GetSubresource() != "" {
				text += " " + a.GetSubresource()
			}
			asked = append(asked, text)
		}
		return asked
	}
}

func TestAnUpdateAsksForWhatHasChanged(t *testing.T) {
	_, clients := newAPIServer(t)
	s, err := kube.New(clients, kube.Options{})
	require.NoError(t, err)
	both := func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef, pv.Status.Phase = &v1.ObjectReference{Name: "data"}, v1.VolumeBound
	}
	for name, c := range map[string]struct {
		change func(pv *v1.PersistentVolume)
		dying  bool
		want   []string
	}{
		"nothing":                   {func(*v1.PersistentVolume) {}, false, []string{"get"}},
		"the status":                {func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound }, false, []string{"get", "update status"}},
		"the spec":                  {func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = &v1.ObjectReference{} }, false, []string{"get", "update"}},
		"an annotation":             {func(pv *v1.PersistentVolume) { pv.Annotations = map[string]string{"a": "b"} }, false, []string{"get", "update"}},
		"both":                      {both, false, []string{"get", "update", "update status"}},
		"both, of a dying one":      {both, true, []string{"get", "update", "update status"}},
		"both, and it ends":         {func(pv *v1.PersistentVolume) { pv.Finalizers, pv.Status.Message = nil, "last words" }, true, []string{"get", "update status", "update"}},
		"it ends":                   {func(pv *v1.PersistentVolume) { pv.Finalizers = nil }, true, []string{"get", "update"}},
		"what no client may change": {func(pv *v1.PersistentVolume) { pv.UID, pv.CreationTimestamp, pv.Generation = "", metav1.Now(), 7 }, false, []string{"get"}},
	} {
		t.Run(name, func(t *testing.T) {
			pv := newVolume("disk")
			pv.Finalizers = []string{"example.com/a"}
			pv, err := store.Create(t.Context(), s, pv)
			require.NoError(t, err)
			if c.dying {
				require.NoError(t, store.Delete(t.Context(), s, pv))
				pv = getVolume(t, s, "disk")
			}
			c.change(pv)
			asked := requests(clients)
			_, err = store.Update(t.Context(), s, pv)
			require.NoError(t, err)
			require.Equal(t, c.want, asked())
			remove(t, s, "disk")
		})
	}
	t.Run("a kind without a status", func(t *testing.T) {
		config, err := store.Create(t.Context(), s, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "config"}})
		require.NoError(t, err)
		config.Data = map[string]string{"a": "b"}
		asked := requests(clients)
		_, err = store.Update(t.Context(), s, config)
		require.NoError(t, err)
		require.Equal(t, []string{"update"}, asked())
	})
}

// remove takes a volume away, whatever its finalizers.
func remove(t *testing.T, s store.Store, name string) {
	t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](t.Context(), s, "", name)
	if errors.Is(err, store.ErrNotFound) {
		return
	}
	require.NoError(t, err)
	pv.Finalizers = nil
	pv, err = store.Update(t.Context(), s, pv)
	require.NoError(t, err)
	if pv.DeletionTimestamp == nil {
		require.NoError(t, store.Delete(t.Context(), s, pv))
	}
}

// between calls f once, before the first update of a status.
func between(clients *servertest.Clients, f func()) {
	done := false
	clients.PrependReactor("update", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() == "status" && !done {
			done = true
			f()
		}
		return false, nil, nil
	})
}

// TestBetweenTheTwoWrites has others write between the two requests of one update.
func TestBetweenTheTwoWrites(t *testing.T) {
	for name, c := range map[string]struct {
		others func(pv *v1.PersistentVolume)
		delete bool
		err    error
	}{
		"no writer":           {},
		"another, the rest":   {others: func(pv *v1.PersistentVolume) { pv.Annotations = map[string]string{"others": "yes"} }},
		"another, the status": {others: func(pv *v1.PersistentVolume) { pv.Status.Message = "theirs" }, err: store.ErrConflict},
		"it is deleted":       {delete: true, err: store.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			server, clients := newAPIServer(t)
			s, err := kube.New(clients, kube.Options{})
			require.NoError(t, err)
			pv := createVolume(t, s, "disk")
			between(clients, func() { // The fake's lock is held: the server's memory is written to.
				switch {
				case c.delete:
					require.NoError(t, store.Delete(t.Context(), server.Memory, pv))
				case c.others != nil:
					theirs := getVolume(t, server.Memory, "disk")
					c.others(theirs)
					_, err := store.Update(t.Context(), server.Memory, theirs)
					require.NoError(t, err)
				}
			})
			changed := pv.DeepCopy()
			changed.Spec.ClaimRef, changed.Status.Phase = &v1.ObjectReference{Name: "data"}, v1.VolumeBound
			updated, err := store.Update(t.Context(), s, changed)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				require.ErrorContains(t, err, "its status is not")
				return
			}
			require.NoError(t, err)
			now := getVolume(t, s, "disk")
			require.Equal(t, now, updated)
			require.Equal(t, v1.VolumeBound, now.Status.Phase)
			require.Equal(t, "data", now.Spec.ClaimRef.Name)
			require.Equal(t, c.others != nil, now.Annotations["others"] == "yes")
		})
	}
}

// TestHalfAnUpdateIsFinished loses the second request, and repeats the update.
func TestHalfAnUpdateIsFinished(t *testing.T) {
	_, clients := newAPIServer(t)
	s, err := kube.New(clients, kube.Options{})
	require.NoError(t, err)
	pv := createVolume(t, s, "disk")
	failed := false
	clients.PrependReactor("update", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() == "status" && !failed {
			failed = true
			return true, nil, errors.New("connection reset")
		}
		return false, nil, nil
	})
	bind := func(pv *v1.PersistentVolume) error {
		pv.Spec.ClaimRef, pv.Status.Phase = &v1.ObjectReference{Name: "data"}, v1.VolumeBound
		_, err := store.Update(t.Context(), s, pv)
		return err
	}
	require.ErrorContains(t, bind(pv), "is updated, its status is not")
	half := getVolume(t, s, "disk")
	require.Equal(t, v1.VolumePending, half.Status.Phase, "no status tells of what is not there")
	require.Equal(t, "data", half.Spec.ClaimRef.Name)
	asked := requests(clients)
	require.NoError(t, bind(half))
	require.Equal(t, []string{"get", "update status"}, asked())
}

func TestACreationWithoutItsStatusSaysSo(t *testing.T) {
	_, clients := newAPIServer(t)
	s, err := kube.New(clients, kube.Options{})
	require.NoError(t, err)
	clients.PrependReactor("update", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection reset")
	})
	pv := newVolume("disk")
	pv.Status.Phase = v1.VolumeAvailable
	_, err = s.Create(t.Context(), pv)
	require.ErrorContains(t, err, "is created, its status is not written")
	getVolume(t, s, "disk")
}

func TestLongListsAreReadInPages(t *testing.T) {
	server, clients := newAPIServer(t)
	s, err := kube.New(clients, kube.Options{})
	require.NoError(t, err)
	server.PerPage = 3
	for i := range 10 {
		createVolume(t, s, fmt.Sprintf("disk-%d", i))
	}
	asked := requests(clients)
	items, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
	require.NoError(t, err)
	require.Equal(t, []string{"list", "list", "list", "list"}, asked())
	for i, pv := range items {
		require.Equal(t, fmt.Sprintf("disk-%d", i), pv.Name)
	}
	require.Len(t, items, 10)

	forgotten := false // The server forgets where the reader was.
	clients.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.ListActionImpl).ListOptions.Continue == "" || forgotten {
			return false, nil, nil
		}
		forgotten = true
		return true, nil, apierrors.NewResourceExpired("the token is too old")
	})
	again, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
	require.NoError(t, err)
	require.Equal(t, items, again)
}

// TestAWatchGoesOn has the server end its watches, as it does now and then.
func TestAWatchGoesOn(t *testing.T) {
	s, server := newStore(t)
	events := watchVolumes(t, s)
	for i := range 5 {
		name := fmt.Sprintf("disk-%d", i)
		last := createVolume(t, s, name)
		requireEvent(t, events, store.Added, name)
		server.Cut()
		after := createVolume(t, s, name+"-after")
		require.Equal(t, after, requireEvent(t, events, store.Added, name+"-after"))
		begun := server.Begun()
		require.Equal(t, last.ResourceVersion, begun[len(begun)-1], "nothing is told twice or missed")
	}
}

func TestAWatchThatCannotGoOnEnds(t *testing.T) {
	t.Run("the server has forgotten", func(t *testing.T) {
		s, server := newStore(t)
		events, err := s.Watch(t.Context(), store.PersistentVolumeClaims, "", present(t, s))
		require.NoError(t, err)
		server.ForgetNext()
		server.Cut()
		requireClosed(t, events)
	})
	t.Run("it is denied", func(t *testing.T) {
		server, clients := newAPIServer(t)
		s, err := kube.New(clients, kube.Options{})
		require.NoError(t, err)
		events := watchVolumes(t, s)
		clients.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, nil, apierrors.NewForbidden(resourceOfVolumes, "", errors.New("the role was taken away"))
		})
		server.Cut()
		requireClosed(t, events)
	})
}

// TestBookmarks has a watch begun again where a bookmark said that it was.
func TestBookmarks(t *testing.T) {
	s, server := newStore(t)
	events := watchVolumes(t, s)
	server.Forget(1) // Of which the watch is told: the bookmark comes after it.
	for range 2 {
		<-events
	}
	at := present(t, s)
	created := createVolume(t, s, "disk")
	requireEvent(t, events, store.Added, "disk")
	server.Tell(watch.Event{Type: watch.Bookmark, Object: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{ResourceVersion: at}}})
	server.Cut()
	require.Equal(t, created, requireEvent(t, events, store.Added, "disk"), "it is told again: the bookmark was before it")
}

// TestErrorsOfAWatchPass has the server end its watch with an error that means nothing.
func TestErrorsOfAWatchPass(t *testing.T) {
	s, server := newStore(t)
	events := watchVolumes(t, s)
	status := apierrors.NewInternalError(errors.New("etcd has no leader")).Status()
	server.Tell(watch.Event{Type: watch.Error, Object: &status})
	createVolume(t, s, "disk")
	requireEvent(t, events, store.Added, "disk")
}

// TestOnly sees what is asked of the server; realserver_test.go sees what that does.
func TestOnly(t *testing.T) {
	_, clients := newAPIServer(t)
	s, err := kube.New(clients, kube.Options{Only: map[schema.GroupVersionKind]fields.Selector{
		store.Nodes: fields.OneTermEqualSelector("metadata.name", "node-1"),
	}})
	require.NoError(t, err)
	for _, kind := range []schema.GroupVersionKind{store.Nodes, store.Pods} {
		list, err := s.List(t.Context(), kind, "")
		require.NoError(t, err)
		_, err = s.Watch(t.Context(), kind, "", list.ResourceVersion)
		require.NoError(t, err)
	}
	asked := map[string]int{}
	for _, a := range clients.Actions() {
		var options metav1.ListOptions
		switch a := a.(type) {
		case clienttesting.ListActionImpl:
			options = a.ListOptions
		case clienttesting.WatchActionImpl:
			options = a.ListOptions
		}
		asked[a.GetResource().Resource+" "+options.FieldSelector]++
	}
	require.Equal(t, map[string]int{"nodes metadata.name=node-1": 3, "pods ": 3}, asked)
}

func present(t *testing.T, s store.Store) string {
	t.Helper()
	list, err := s.List(t.Context(), store.PersistentVolumes, "")
	require.NoError(t, err)
	return list.ResourceVersion
}

func requireClosed(t *testing.T, events <-chan store.Event) {
	t.Helper()
	for range events { // What was on its way comes first.
	}
}

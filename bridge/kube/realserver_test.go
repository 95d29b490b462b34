//go:build kubeapiserver

package kube_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/volumekit/volumekit/bridge/kube"
	"github.com/volumekit/volumekit/bridge/kube/internal/servertest"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

// TestAPIServer holds the store on a real kube-apiserver to all that the one on client-go's fake is held to. `make test-kube` builds the
// server and etcd into the directory that KUBE_BINARIES names.
func TestAPIServer(t *testing.T) {
	c := cluster{servertest.Start(t), t}
	s := c.store("admin")
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) store.Store {
			t.Helper()
			c.clean(t)
			return s
		},
		Compact: func(t *testing.T, _ store.Store) {
			t.Helper()
			c.Compact()
		},
	})
	for _, test := range suite() {
		t.Run(test.name, func(t *testing.T) {
			c.clean(t)
			test.run(t, s)
		})
	}
	t.Run("WithInformers", func(t *testing.T) {
		informed := newInformedStore(t, c.clients("admin"))
		storetest.Run(t, storetest.Config{New: func(t *testing.T) store.Store {
			t.Helper()
			c.clean(t)
			return informed
		}})
		for _, test := range suite() {
			t.Run(test.name, func(t *testing.T) {
				c.clean(t)
				test.run(t, informed)
			})
		}
	})
	t.Run("WithoutARoleEverythingIsDenied", func(t *testing.T) { testDenied(t, c.store("nobody")) })
	t.Run("WithoutCredentialsEverythingIsDenied", func(t *testing.T) { testDenied(t, c.store("unknown")) })
	t.Run("AnAgentSeesItsOwn", func(t *testing.T) {
		c.clean(t)
		testOnly(t, c.clients("admin"))
	})
	t.Run("WhatTheServerValidates", func(t *testing.T) {
		c.clean(t)
		testValidation(t, s)
	})
	t.Run("AWatchGoesOnWhenTheServerHasRestarted", func(t *testing.T) {
		c.clean(t)
		events := watchVolumes(t, s)
		createVolume(t, s, "before")
		requireEvent(t, events, store.Added, "before")
		c.Restart()
		createVolume(t, s, "after")
		requireEvent(t, events, store.Added, "after")
	})
}

// testOnly gives an agent its own node and its own pods.
func testOnly(t *testing.T, clients kubernetes.Interface) {
	s, err := kube.New(clients, kube.Options{Only: map[schema.GroupVersionKind]fields.Selector{
		store.Nodes: fields.OneTermEqualSelector("metadata.name", "node-1"),
		store.Pods:  fields.OneTermEqualSelector("spec.nodeName", "node-1"),
	}})
	require.NoError(t, err)
	list, err := s.List(t.Context(), store.Pods, "")
	require.NoError(t, err)
	events, err := s.Watch(t.Context(), store.Pods, "", list.ResourceVersion)
	require.NoError(t, err)
	for _, node := range []string{"node-2", "node-1"} {
		_, err = s.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		require.NoError(t, err)
		_, err = s.Create(t.Context(), newPod("pod-on-"+node, node, ""))
		require.NoError(t, err)
	}
	require.Equal(t, "pod-on-node-1", (<-events).Object.(*v1.Pod).Name)
	nodes, _, err := store.ListOf[*v1.Node](t.Context(), s, "")
	require.NoError(t, err)
	require.Len(t, nodes, 1)
}

// testValidation writes what only Kubernetes itself refuses.
func testValidation(t *testing.T, s store.Store) {
	pv := newVolume("validated")
	pv.Spec.AccessModes = nil
	_, err := s.Create(t.Context(), pv)
	require.ErrorIs(t, err, store.ErrInvalid)
	pv = createVolume(t, s, "validated")
	pv.Spec.HostPath.Path = "/elsewhere"
	_, err = s.Update(t.Context(), pv)
	require.ErrorIs(t, err, store.ErrInvalid)
}

// testDenied makes each call as a user without permissions.
func testDenied(t *testing.T, s store.Store) {
	key := store.Key{Kind: store.PersistentVolumes, Name: "disk"}
	_, err := s.Get(t.Context(), key)
	require.ErrorIs(t, err, kube.ErrDenied)
	_, err = s.Create(t.Context(), newVolume("disk"))
	require.ErrorIs(t, err, kube.ErrDenied)
	require.ErrorIs(t, s.Delete(t.Context(), key, store.Preconditions{}), kube.ErrDenied)
	_, err = s.List(t.Context(), store.PersistentVolumes, "")
	require.ErrorIs(t, err, kube.ErrDenied)
	_, err = s.Watch(t.Context(), store.PersistentVolumes, "", "1")
	require.ErrorIs(t, err, kube.ErrDenied)
}

// cluster is a real API server, as the tests of a store use it.
type cluster struct {
	*servertest.Cluster

	t *testing.T
}

func (c cluster) clients(token string) *kubernetes.Clientset {
	c.t.Helper()
	clients, err := kubernetes.NewForConfig(c.Config(token))
	require.NoError(c.t, err)
	return clients
}

func (c cluster) store(token string) *kube.Store {
	c.t.Helper()
	s, err := kube.New(c.clients(token), kube.Options{})
	require.NoError(c.t, err)
	return s
}

// clean takes away what the tests have made.
func (c cluster) clean(t *testing.T) {
	t.Helper()
	clients, now := c.clients("admin"), metav1.NewDeleteOptions(0)
	s := c.store("admin")
	for _, kind := range store.Kinds() {
		list, err := s.List(t.Context(), kind, "")
		require.NoError(t, err)
		for _, item := range list.Items {
			obj := item.(store.Object)
			if obj.GetNamespace() == metav1.NamespaceSystem {
				continue
			}
			if len(obj.GetFinalizers()) > 0 {
				obj.SetFinalizers(nil)
				_, err := s.Update(t.Context(), obj)
				require.NoError(t, err)
			}
			if _, isPod := obj.(*v1.Pod); isPod {
				require.NoError(t, clients.CoreV1().Pods(obj.GetNamespace()).Delete(t.Context(), obj.GetName(), *now))
				continue
			}
			key, err := store.KeyOf(obj)
			require.NoError(t, err)
			if err := s.Delete(t.Context(), key, store.Preconditions{}); err != nil {
				require.ErrorIs(t, err, store.ErrNotFound)
			}
		}
	}
}

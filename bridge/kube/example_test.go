package kube_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/volumekit/volumekit/bridge/kube"
	"github.com/volumekit/volumekit/bridge/kube/internal/servertest"
	"github.com/volumekit/volumekit/store"
)

// A claim of an API server is read as from every other store. In the place of client-go's fake a program has
// kubernetes.NewForConfig.
func Example() {
	clients := &servertest.Clients{}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", ResourceVersion: "7", UID: "u1"}}
	tracker := clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	check(tracker.Add(claim))
	clients.AddReactor("*", "*", clienttesting.ObjectReaction(tracker))

	s, err := kube.New(clients, kube.Options{})
	check(err)
	read, err := s.Get(context.Background(), store.Key{Kind: store.PersistentVolumeClaims, Namespace: "shop", Name: "data"})
	check(err)
	found := read.(*v1.PersistentVolumeClaim)
	fmt.Println(found.Namespace, found.Name, found.ResourceVersion)
	// Output: shop data 7
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

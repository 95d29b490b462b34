package store_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
)

// A manifest is applied as often as it is read: what is missing is created, and what has changed is updated.
func ExampleApply() {
	ctx := context.Background()
	s := store.NewMemory(store.MemoryOptions{})
	manifest := `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: fast
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: volumekit.io/loop-block
`
	for _, text := range []string{manifest, strings.ReplaceAll(manifest, "1Gi", "2Gi"), strings.ReplaceAll(manifest, "Name: fast", "Name: slow")} {
		objects, err := store.Decode(strings.NewReader(text))
		check(err)
		applied, err := store.Apply(ctx, s, objects)
		for _, one := range applied {
			fmt.Println(one.Object.GetName(), "is", one.Action)
		}
		if err != nil {
			fmt.Println(err)
		}
	}

	// Output:
	// fast is created
	// data is created
	// fast is unchanged
	// data is updated
	// fast is unchanged
	// apply: PersistentVolumeClaim "default/data": spec.storageClassName cannot change: apply it without, or delete the object and make another one: invalid object
}

// A plugin that shows secrets as files gets them from the store.
func ExampleGetter() {
	ctx := context.Background()
	s := store.NewMemory(store.MemoryOptions{})
	objects, err := store.Decode(strings.NewReader("apiVersion: v1\nkind: Secret\nmetadata: {name: login, namespace: web}\ndata: {user: YWxpY2U=}"))
	check(err)
	_, err = store.Apply(ctx, s, objects)
	check(err)

	getter := store.Getter{Store: s} // for files.NewSecret, files.NewConfigMap, files.NewProjected and Driver.Secret
	secret, err := getter.Secret(ctx, "web", "login")
	check(err)
	fmt.Printf("user is %s\n", secret.Data["user"])
	_, err = getter.ConfigMap(ctx, "web", "settings")
	fmt.Println("settings are missing:", errors.Is(err, store.ErrNotFound))

	// Output:
	// user is alice
	// settings are missing: true
}

// A program that deletes a claim waits until it is gone: the pods that use it may keep it for a while.
func ExampleWaitForNone() {
	ctx := context.Background()
	s := store.NewMemory(store.MemoryOptions{})
	claim := &v1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name = "web", "data"
	claim, err := store.Create(ctx, s, claim)
	check(err)

	check(store.Delete(ctx, s, claim))
	err = store.WaitForNone(ctx, s, func(c *v1.PersistentVolumeClaim) bool { return c.Name == "data" })
	fmt.Println("gone:", err == nil)

	// Output:
	// gone: true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

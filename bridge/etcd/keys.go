package etcd

import (
	"path"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// keys are where things are in etcd. Kinds, namespaces and names have no slash.
type keys struct{ prefix string }

// ofKind begins every key of a kind: one watch sees its objects and their deletions.
func (k keys) ofKind(kind schema.GroupVersionKind) string { return k.prefix + kind.Kind + "/" }

// ofObjects begins the keys of all objects of a kind in a namespace; of all of them if that is empty.
func (k keys) ofObjects(kind schema.GroupVersionKind, namespace string) string {
	begin := k.ofKind(kind) + "objects/"
	if namespace != "" {
		begin += namespace + "/"
	}
	return begin
}

func (k keys) ofObject(key store.Key) string {
	return k.ofObjects(key.Kind, key.Namespace) + key.Name
}

// ofDeleted is the key of the nth deletion of objects of a kind in one transaction.
func (k keys) ofDeleted(kind schema.GroupVersionKind, n int) string {
	return k.ofKind(kind) + "deleted/" + strconv.Itoa(n)
}

func (k keys) ofLease(name types.NamespacedName) string {
	return k.ofLeases() + path.Join(name.Namespace, name.Name)
}

// ofLeases begins the keys of all leases.
func (k keys) ofLeases() string { return k.prefix + "lease/" }

func (k keys) ofHolder(volume string) string { return k.prefix + "holder/" + volume }

package kube

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	storagev1 "k8s.io/client-go/kubernetes/typed/storage/v1"

	"github.com/volumekit/volumekit/store"
)

// Client is the part of client-go's clientset that a [Store] needs. kubernetes.Interface implements it.
type Client interface {
	CoreV1() corev1.CoreV1Interface
	StorageV1() storagev1.StorageV1Interface
	CoordinationV1() coordinationv1.CoordinationV1Interface
}

// resource is the client of one kind in one namespace. Its errors are those of client-go, its objects carry their kind.
type resource interface {
	get(ctx context.Context, name string) (store.Object, error)
	create(ctx context.Context, obj store.Object) (store.Object, error)
	update(ctx context.Context, obj store.Object) (store.Object, error)
	updateStatus(ctx context.Context, obj store.Object) (store.Object, error)
	delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	list(ctx context.Context, options metav1.ListOptions) (page, error)
	watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// page is a part of a list.
type page struct {
	objects []store.Object
	version string
	more    string // the token of the next page; empty at the end
}

// resourcesOf returns the client of each kind that a store keeps, by namespace.
func resourcesOf(c Client) map[schema.GroupVersionKind]func(namespace string) resource {
	core, storage, coordination := c.CoreV1(), c.StorageV1(), c.CoordinationV1()
	return map[schema.GroupVersionKind]func(string) resource{
		store.PersistentVolumes:       func(string) resource { return withStatus(core.PersistentVolumes()) },
		store.PersistentVolumeClaims:  func(in string) resource { return withStatus(core.PersistentVolumeClaims(in)) },
		store.Pods:                    func(in string) resource { return withStatus(core.Pods(in)) },
		store.Nodes:                   func(string) resource { return withStatus(core.Nodes()) },
		store.VolumeAttachments:       func(string) resource { return withStatus(storage.VolumeAttachments()) },
		store.ConfigMaps:              func(in string) resource { return whole(core.ConfigMaps(in)) },
		store.Secrets:                 func(in string) resource { return whole(core.Secrets(in)) },
		store.StorageClasses:          func(string) resource { return whole(storage.StorageClasses()) },
		store.CSINodes:                func(string) resource { return whole(storage.CSINodes()) },
		store.CSIDrivers:              func(string) resource { return whole(storage.CSIDrivers()) },
		store.VolumeAttributesClasses: func(string) resource { return whole(storage.VolumeAttributesClasses()) },
		store.CSIStorageCapacities:    func(in string) resource { return whole(storage.CSIStorageCapacities(in)) },
		store.Leases:                  func(in string) resource { return whole(coordination.Leases(in)) },
	}
}

// objectList is a list of client-go.
type objectList interface {
	runtime.Object
	metav1.ListInterface
}

// typedClient has the methods of all of client-go's clients.
type typedClient[T store.Object, L objectList] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Create(ctx context.Context, obj T, options metav1.CreateOptions) (T, error)
	Update(ctx context.Context, obj T, options metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// statusClient is the client of a kind with a status subresource.
type statusClient[T store.Object, L objectList] interface {
	typedClient[T, L]
	UpdateStatus(ctx context.Context, obj T, options metav1.UpdateOptions) (T, error)
}

// Resource is the client of a kind that is not in k8s.io/api. Make it with [Whole] or [WithStatus].
type Resource struct {
	in func(kinds *store.KindTable, namespace string) resource
}

// Whole returns the resource of a kind without a status subresource. client returns the client for a namespace; for a kind without
// namespaces it gets "".
func Whole[C typedClient[T, L], T store.Object, L objectList](client func(namespace string) C) Resource {
	return Resource{func(kinds *store.KindTable, namespace string) resource {
		c := client(namespace)
		return typed[T, L]{kinds, c, c.Update}
	}}
}

// WithStatus is [Whole] for a kind with a status subresource. The field of the status must have the name Status.
func WithStatus[C statusClient[T, L], T store.Object, L objectList](client func(namespace string) C) Resource {
	return Resource{func(kinds *store.KindTable, namespace string) resource {
		c := client(namespace)
		return typed[T, L]{kinds, c, c.UpdateStatus}
	}}
}

// typed is a resource over a typed client.
type typed[T store.Object, L objectList] struct {
	kinds        *store.KindTable
	client       typedClient[T, L]
	writesStatus func(ctx context.Context, obj T, options metav1.UpdateOptions) (T, error)
}

// whole returns the resource of a kind without a status subresource.
func whole[T store.Object, L objectList](client typedClient[T, L]) resource {
	return typed[T, L]{nil, client, client.Update}
}

// withStatus returns the resource of a kind with a status subresource.
func withStatus[T store.Object, L objectList](client statusClient[T, L]) resource {
	return typed[T, L]{nil, client, client.UpdateStatus}
}

func (r typed[T, L]) get(ctx context.Context, name string) (store.Object, error) {
	obj, err := r.client.Get(ctx, name, metav1.GetOptions{})
	return received(r.kinds, obj, err)
}

func (r typed[T, L]) create(ctx context.Context, obj store.Object) (store.Object, error) {
	created, err := r.client.Create(ctx, obj.(T), metav1.CreateOptions{}) //nolint:forcetypeassert // The resource is found by the type.
	return received(r.kinds, created, err)
}

func (r typed[T, L]) update(ctx context.Context, obj store.Object) (store.Object, error) {
	updated, err := r.client.Update(ctx, obj.(T), metav1.UpdateOptions{}) //nolint:forcetypeassert // The resource is found by the type.
	return received(r.kinds, updated, err)
}

func (r typed[T, L]) updateStatus(ctx context.Context, obj store.Object) (store.Object, error) {
	updated, err := r.writesStatus(ctx, obj.(T), metav1.UpdateOptions{}) //nolint:forcetypeassert // The resource is found by the type.
	return received(r.kinds, updated, err)
}

func (r typed[T, L]) delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return r.client.Delete(ctx, name, options)
}

func (r typed[T, L]) list(ctx context.Context, options metav1.ListOptions) (page, error) {
	list, err := r.client.List(ctx, options)
	if err != nil {
		return page{}, err
	}
	p := page{version: list.GetResourceVersion(), more: list.GetContinue()}
	// Each in a memory of its own: a reader that keeps one does not keep the others.
	err = meta.EachListItemWithAlloc(list, func(item runtime.Object) error {
		obj, err := received(r.kinds, item.(T), nil) //nolint:forcetypeassert // It is a list of these.
		p.objects = append(p.objects, obj)
		return err
	})
	return p, err
}

func (r typed[T, L]) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return r.client.Watch(ctx, options)
}

// received returns an object of the API server in the form of a store: with its kind, which client-go removes, and without its managed
// fields, which only the server uses and which may be larger than the rest. An update without them does not change them.
func received[T store.Object](kinds *store.KindTable, obj T, err error) (store.Object, error) {
	if err != nil {
		return nil, err
	}
	kind, err := kinds.KindOf(obj)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(kind)
	obj.SetManagedFields(nil)
	return obj, nil
}

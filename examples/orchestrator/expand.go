package main

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// expander is the control plane's part of expansion: it makes the storage larger behind claims that ask for more than they
// have. What is left to do on the node, where a filesystem must grow, the volume manager does by itself.
type expander struct {
	plugins  *volume.VolumePluginMgr
	store    store.Store
	executor *operationexecutor.Executor
}

func newExpander(plugins *volume.VolumePluginMgr, s store.Store, o options, out *output) *expander {
	claims := claimStore{s}
	return &expander{plugins: plugins, store: s, executor: operationexecutor.NewOperationExecutor(
		operationexecutor.NewOperationGenerator(operationexecutor.GeneratorOptions{
			Plugins: plugins, Claims: claims, Capacity: claims, Recorder: out,
		}),
		operationexecutor.ExecutorOptions{Backoff: operationexecutor.Backoff{Initial: o.retry}},
	)}
}

// expandAll expands what must be, and returns when all of it has ended. How far each expansion came is written in its claim,
// so that one that was broken off is finished here.
func (e *expander) expandAll(ctx context.Context) error {
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](ctx, e.store, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	var errs []error
	for _, claim := range claims {
		if claim.Status.Phase == v1.ClaimBound && claim.DeletionTimestamp == nil && wantsMore(claim) {
			errs = append(errs, e.expand(ctx, claim))
		}
	}
	return errors.Join(errs...)
}

// wantsMore reports whether a claim asks for more than it has. Here a check would have its place whether its class allows
// that (allowVolumeExpansion), and a quota.
func wantsMore(claim *v1.PersistentVolumeClaim) bool {
	wants, has := claim.Spec.Resources.Requests[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
	return wants.Cmp(has) > 0
}

func (e *expander) expand(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	pv, err := store.Get[*v1.PersistentVolume](ctx, e.store, "", claim.Spec.VolumeName)
	if err != nil {
		return err
	}
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	plugin, err := e.plugins.FindPluginBySpec(spec)
	if err != nil {
		return err
	}
	name, err := volume.GetUniqueVolumeNameFromSpec(plugin, spec)
	if err != nil {
		return err
	}
	operation, err := e.executor.ExpandVolume(ctx, operationexecutor.VolumeToExpand{VolumeName: name, VolumeSpec: spec})
	if err != nil {
		return err
	}
	<-operation.Done() // It ends with ctx.
	return operation.Err()
}

// claimStore writes down how far expansions have come.
type claimStore struct{ store.Store }

var (
	_ operationexecutor.ClaimStatus    = claimStore{}
	_ operationexecutor.VolumeCapacity = claimStore{}
)

// Claim implements operationexecutor.ClaimStatus.
func (c claimStore) Claim(ctx context.Context, spec *volume.Spec) (*v1.PersistentVolumeClaim, error) {
	owner := spec.PersistentVolume.Spec.ClaimRef
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.Store, owner.Namespace, owner.Name)
	if err == nil && claim.UID != owner.UID {
		err = fmt.Errorf("claim %s is not the one that volume %q belongs to", nameOf(claim), spec.Name())
	}
	return claim, err
}

// SetExpansion implements operationexecutor.ClaimStatus.
func (c claimStore) SetExpansion(
	ctx context.Context, claim *v1.PersistentVolumeClaim, expansion operationexecutor.Expansion,
) (*v1.PersistentVolumeClaim, error) {
	return store.Update(ctx, c.Store, expansion.Apply(claim))
}

// SetCapacity implements operationexecutor.VolumeCapacity.
func (c claimStore) SetCapacity(ctx context.Context, pv *v1.PersistentVolume, size resource.Quantity) (*v1.PersistentVolume, error) {
	changed := pv.DeepCopy()
	changed.Spec.Capacity[v1.ResourceStorage] = size
	return store.Update(ctx, c.Store, changed)
}

// requestMore writes that a claim asks for more than before: the one thing that can be changed of what is there.
func (a *agent) requestMore(ctx context.Context, there, wanted runtime.Object) error {
	claim, ok := there.(*v1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	size := wanted.(*v1.PersistentVolumeClaim).Spec.Resources.Requests[v1.ResourceStorage] //nolint:forcetypeassert // Both have the same key.
	if size.Cmp(claim.Spec.Resources.Requests[v1.ResourceStorage]) <= 0 {
		return nil
	}
	changed := claim.DeepCopy()
	changed.Spec.Resources.Requests[v1.ResourceStorage] = size
	_, err := store.Update(ctx, a.database, changed)
	return err
}

package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/bind"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/storage"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// provisioning creates volumes for claims, and records the progress on the claims.
type provisioning struct {
	plugins   *volume.VolumePluginMgr
	store     store.Store
	mirrors   *mirrors
	queue     *work.Queue
	placement placement
	binder    *bind.Binder
	storage   *storage.Plugins
	pending   *pendingClaims
	events    volume.EventRecorder

	populating *populating
}

// provision creates a volume for a claim that found none, and binds it. It reports whether the claim is bound.
func (p *provisioning) provision(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass,
) (bound bool, err error) {
	plugin, why := p.provisioner(class)
	if plugin == nil {
		return false, p.waitForOthers(ctx, claim, class, why)
	}
	if why := p.unfit(claim); why != nil {
		return false, p.pending.wait(ctx, claim, *why)
	}
	attributes, err := p.attributesFor(ctx, claim, plugin)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, volume.ErrInfeasible) {
		return false, p.pending.wait(ctx, claim, provisioningFailed(err))
	}
	if err != nil {
		return false, p.notBegun(ctx, claim, err)
	}
	if err := p.queue.CheckBackoff(work.Item{Kind: work.Claim, Name: store.NameOf(claim)}, claim.UID); err != nil {
		return false, err
	}
	mayBeThere := slices.Contains(claim.Finalizers, objects.FinalizerProvisioning)
	job, err := p.prepare(ctx, claim, class, plugin)
	if err != nil {
		return false, p.notBegun(ctx, claim, err)
	}
	before := claim
	claim, err = p.intend(ctx, claim, class)
	if err != nil {
		return false, err
	}
	if job.IsFilled() && !mayBeThere {
		// The source may have lost its protection before the claim showed that it needs the source.
		if job, err = p.prepare(ctx, before, class, plugin); err != nil {
			return false, p.failed(ctx, claim, err)
		}
	}
	made, err := p.storage.Make(ctx, claim, job.With(attributes))
	if err == nil && p.binder.CreateBound(ctx, claim, made) {
		p.recordMade(claim, made)
		return true, nil
	}
	if err == nil {
		made, err = p.save(ctx, claim, made)
	}
	// The earlier attempt may have had the attributes of another class: see finish.
	if err != nil && mayBeThere && (attributes != nil || !provesNoStorage(err)) {
		err = volume.Uncertain(err)
	}
	if err != nil {
		return false, p.failed(ctx, claim, err)
	}
	p.recordMade(claim, made)
	if objects.IsUnfilled(made) {
		p.queue.Add(work.Claim, store.NameOf(claim)) // The next sync has it filled.
		return false, nil
	}
	err = p.binder.Bind(ctx, claim, made)
	return err == nil, err
}

// unfit returns why no volume can be made for a claim as it is; nil when one can.
func (p *provisioning) unfit(claim *v1.PersistentVolumeClaim) *reason {
	if _, err := volume.RequestedBytes(claim); err != nil {
		why := provisioningFailed(err)
		return &why
	}
	if ref, _ := storage.OfAnotherKind(claim); ref == nil {
		return nil
	}
	_, why := p.populating.populator(claim)
	return why
}

// attributesFor returns the class of attributes that a claim names; nil when it names none. The error matches store.ErrNotFound if the
// class does not exist, and volume.ErrInfeasible if it is for another driver, or the plugin takes none: the volume would not have what
// the class says.
func (p *provisioning) attributesFor(
	ctx context.Context, claim *v1.PersistentVolumeClaim, plugin volume.ProvisionableVolumePlugin,
) (*storagev1.VolumeAttributesClass, error) {
	name, pluginName := objects.Deref(claim.Spec.VolumeAttributesClassName), plugin.GetPluginName()
	if name == "" {
		return nil, nil
	}
	if !p.plugins.Capabilities(pluginName).Has(volume.CapModify) {
		return nil, fmt.Errorf("the claim names volume attributes class %q, and plugin %q takes the parameters of none: name none, or make a "+
			"volume of that class by hand: %w", name, pluginName, volume.ErrInfeasible)
	}
	class, err := store.Get[*storagev1.VolumeAttributesClass](ctx, p.store, "", name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, fmt.Errorf("volume attributes class %q does not exist: create it, or name another: %w", name, err)
	case err != nil:
		return nil, err
	case !volume.IsDriverOfPlugin(class.DriverName, pluginName):
		return nil, fmt.Errorf("volume attributes class %q is for driver %q, and the volume is made by plugin %q: name a class of that plugin: %w",
			name, class.DriverName, pluginName, volume.ErrInfeasible)
	}
	return class, nil
}

// prepare checks a provisioning before anything begins.
func (p *provisioning) prepare(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, plugin volume.ProvisionableVolumePlugin,
) (storage.Job, error) {
	node, err := p.placement.nodeToProvision(ctx, claim, class)
	if err != nil {
		return storage.Job{}, err
	}
	return p.storage.Prepare(ctx, claim, class, plugin, node)
}

// waitForOthers makes a claim wait if no plugin here creates a volume for it.
func (p *provisioning) waitForOthers(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, why reason,
) error {
	if why.reason != ReasonExternalProvisioning {
		return p.pending.wait(ctx, claim, why)
	}
	claim, err := p.leaveToOthers(ctx, claim, class)
	if err != nil {
		return err
	}
	return p.pending.wait(ctx, claim, why)
}

func (p *provisioning) recordMade(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
	p.events.Eventf(claim, v1.EventTypeNormal, objects.ReasonProvisioningSucceeded, "made volume %q", pv.Name)
}

// provisioner returns the plugin of a class; nil with the reason if there is none here.
func (p *provisioning) provisioner(class *storagev1.StorageClass) (volume.ProvisionableVolumePlugin, reason) {
	if class.Provisioner == NoProvisioner {
		return nil, failedBinding("no volume fits, and nothing makes volumes of storage class %q: create a PersistentVolume of it", class.Name)
	}
	plugin, err := p.plugins.FindProvisionablePluginByName(class.Provisioner)
	switch {
	case err == nil:
		return plugin, reason{}
	case strings.HasPrefix(class.Provisioner, inTreePrefix):
		return nil, provisioningFailed(fmt.Errorf(
			"no volume fits, and storage class %q has a provisioner that cannot make one: %w", class.Name, err))
	}
	return nil, reason{
		eventType: v1.EventTypeNormal, reason: ReasonExternalProvisioning, err: err,
		message: fmt.Sprintf("waiting for a volume to be created, either by the provisioner %q of storage class %q, which is none "+
			"of the plugins here that make volumes (%v), or by hand", class.Provisioner, class.Name, err),
	}
}

// inTreePrefix begins the names of provisioners that are plugins or nothing: no program provisions under such a name.
const inTreePrefix = "kubernetes.io/"

// leaveToOthers writes the provisioner and the node of the new volume into the claim. External provisioners wait for
// that.
func (p *provisioning) leaveToOthers(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass,
) (*v1.PersistentVolumeClaim, error) {
	changed := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, objects.AnnStorageProvisioner, class.Provisioner)
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, objects.AnnBetaStorageProvisioner, class.Provisioner)
	if node := p.placement.selected(claim); objects.WaitsForConsumer(class) && node != "" {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, objects.AnnSelectedNode, string(node))
	}
	if maps.Equal(changed.Annotations, claim.Annotations) {
		return claim, nil
	}
	return p.binder.UpdateClaim(ctx, changed)
}

// intend records on the claim that a volume is about to be created, before anything is.
func (p *provisioning) intend(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass,
) (*v1.PersistentVolumeClaim, error) {
	if claim.Annotations[objects.AnnStorageProvisioner] == class.Provisioner && slices.Contains(claim.Finalizers, objects.FinalizerProvisioning) {
		return claim, p.binder.Confirm(ctx, claim)
	}
	changed := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, objects.AnnStorageProvisioner, class.Provisioner)
	if !slices.Contains(changed.Finalizers, objects.FinalizerProvisioning) {
		changed.Finalizers = append(changed.Finalizers, objects.FinalizerProvisioning)
	}
	if node := p.placement.selected(claim); objects.WaitsForConsumer(class) && p.placement.nodeName == "" {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, objects.AnnSelectedNode, string(node)) // It stays whatever becomes of the pod.
	}
	bind.WithoutVolume(changed, v1.ClaimPending)
	return p.binder.UpdateClaim(ctx, changed)
}

// notBegun records why provisioning cannot begin. It is retried. The annotations of an earlier attempt stay on the
// claim. Without an earlier attempt, a selected node that does not exist is removed.
func (p *provisioning) notBegun(ctx context.Context, claim *v1.PersistentVolumeClaim, err error) error {
	if errors.Is(err, errSelectedNodeGone) {
		if !slices.Contains(claim.Finalizers, objects.FinalizerProvisioning) {
			return p.failed(ctx, claim, err)
		}
		err = volume.Transient(fmt.Errorf("%w: an earlier attempt may have made the volume for this node: create the node again, or remove "+
			"annotation %q from the claim", err, objects.AnnSelectedNode))
	}
	failed := &work.CallError{UID: claim.UID, Err: fmt.Errorf("claim %q gets no volume: %w", store.NameOf(claim), err)}
	if err := p.pending.wait(ctx, claim, provisioningFailed(err)); err != nil {
		failed.Err = errors.Join(failed.Err, err)
	}
	return failed
}

func provisioningFailed(err error) reason {
	return reason{eventType: v1.EventTypeWarning, reason: ReasonProvisioningFailed, message: err.Error(), err: err}
}

// save creates the volume's object. It succeeds when the object is there already, as after a crash. When the store can never take the
// object, the storage is deleted; when it cannot now, provisioning is done again later, which finds the storage by its name.
func (p *provisioning) save(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	saved, err := store.Create(ctx, p.store, pv)
	switch {
	case err == nil:
		p.binder.Put(saved)
		return saved, nil
	case errors.Is(err, store.ErrInvalid):
		return nil, p.storage.Discard(ctx, claim, pv, fmt.Errorf("the store refuses volume %q: %w", pv.Name, err))
	case !errors.Is(err, store.ErrAlreadyExists):
		return nil, volume.Uncertain(fmt.Errorf("volume %q was made but not stored: %w", pv.Name, err))
	}
	saved, err = store.Get[*v1.PersistentVolume](ctx, p.store, "", pv.Name)
	if err != nil {
		return nil, volume.Uncertain(fmt.Errorf("volume %q was stored before: %w", pv.Name, err))
	}
	if !objects.OwnedBy(saved, claim) {
		return nil, volume.Uncertain(fmt.Errorf("volume %q has the name of the one for claim %q but is not its: rename or delete it: %w",
			pv.Name, store.NameOf(claim), volume.ErrInUse))
	}
	return saved, nil
}

// provesNoStorage reports whether the error of a provisioner proves that there is no storage, even from an earlier attempt: a
// provisioner that has created the volume finds it by its name, and does not call it impossible. Any other error only
// says that this attempt has created nothing. So does a refusal of attributes: an earlier attempt may have had those of
// another class.
func provesNoStorage(err error) bool {
	return outcome.ClassOf(err) == outcome.Final &&
		(errors.Is(err, volume.ErrInfeasible) || errors.Is(err, volume.ErrUnsupported) || errors.Is(err, volume.ErrInvalid))
}

// failed records that a provisioning failed. It is tried again. When no storage is left, the claim's finalizer goes; after a final
// error the node goes too that a scheduler selected, so that it may select another.
func (p *provisioning) failed(ctx context.Context, claim *v1.PersistentVolumeClaim, err error) error {
	failed := &work.CallError{UID: claim.UID, Err: fmt.Errorf("claim %q gets no volume: %w", store.NameOf(claim), err)}
	if ctx.Err() != nil {
		return failed
	}
	why := provisioningFailed(err)
	p.pending.failed(claim, why)
	changed := claim.DeepCopy()
	news := why.writeTo(changed)
	if outcome.ClassOf(err) != outcome.Uncertain {
		objects.DropFinalizer(&changed.ObjectMeta, objects.FinalizerProvisioning)
	} else if !news {
		return failed
	}
	if p.placement.nodeName == "" && outcome.ClassOf(err) == outcome.Final {
		delete(changed.Annotations, objects.AnnSelectedNode)
	}
	if _, err := p.binder.UpdateClaim(ctx, changed); err != nil && !errors.Is(err, store.ErrNotFound) {
		failed.Err = errors.Join(failed.Err, err)
	}
	return failed
}

// finish provisions for a claim that is being deleted. It returns nil when the volume is in the store, or no storage is left.
func (p *provisioning) finish(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if err := p.queue.CheckBackoff(work.Item{Kind: work.Claim, Name: store.NameOf(claim)}, claim.UID); err != nil {
		return err
	}
	class, err := p.mirrors.class(ctx, claim)
	if err != nil {
		return p.cleanupFailed(claim, err)
	}
	if class == nil {
		return p.cleanupFailed(claim, fmt.Errorf("storage class %q is gone: create it again", objects.ClassOf(claim)))
	}
	plugin, why := p.provisioner(class)
	if plugin == nil {
		return p.cleanupFailed(claim, errors.New(why.message))
	}
	// Without its source a copy is not made any more; one that is there is found by its name.
	job, err := p.prepare(ctx, claim, class, plugin)
	if err != nil && !errors.Is(err, storage.ErrSourceGone) {
		return p.cleanupFailed(claim, err)
	}
	attributes, err := p.attributesFor(ctx, claim, plugin)
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, volume.ErrInfeasible) {
		return p.cleanupFailed(claim, err)
	}
	made, err := p.storage.Make(ctx, claim, job.With(attributes))
	if err != nil && attributes != nil && provesNoStorage(err) {
		// An earlier attempt may have had other attributes. Without any, the volume is found, or created and deleted.
		made, err = p.storage.Make(ctx, claim, job.With(nil))
	}
	if err == nil {
		_, err = p.save(ctx, claim, made)
	}
	if err == nil || provesNoStorage(err) {
		return nil
	}
	return p.cleanupFailed(claim, err)
}

// cleanupFailed says that it is unknown whether storage was created for a claim that is being deleted.
func (p *provisioning) cleanupFailed(claim *v1.PersistentVolumeClaim, err error) error {
	p.events.Eventf(claim, v1.EventTypeWarning, objects.ReasonProvisioningCleanupFailed,
		"the claim stays until it is known whether storage was made for it: %v", err)
	return &work.CallError{UID: claim.UID, Err: fmt.Errorf("claim %q cannot go: %w", store.NameOf(claim), err)}
}

// provisioned returns the volume that was created for this claim before an interrupted bind; nil for none.
func (p *provisioning) provisioned(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	if !slices.Contains(claim.Finalizers, objects.FinalizerProvisioning) {
		return nil, nil
	}
	pv, err := store.Get[*v1.PersistentVolume](ctx, p.store, "", objects.ProvisionedName(claim))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !objects.OwnedBy(pv, claim):
		return nil, fmt.Errorf("volume %q has the name of the one for claim %q but is not its: rename or delete it: %w",
			pv.Name, store.NameOf(claim), volume.ErrInUse)
	}
	return pv, nil
}

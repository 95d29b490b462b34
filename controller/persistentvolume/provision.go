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

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// provisionedName returns the name of the volume that is made for claim: the same each time, and no other claim's.
func provisionedName(claim *v1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// provision makes a volume for a claim that found none, and binds it.
func (c *Controller) provision(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	plugin, why := c.provisioner(class)
	if plugin == nil {
		return c.waitForOthers(ctx, claim, class, why)
	}
	if _, err := volume.RequestedBytes(claim); err != nil {
		return c.wait(ctx, claim, provisioningFailed(err))
	}
	if err := c.work.held(item{claimItem, store.NameOf(claim)}, claim.UID); err != nil {
		return err
	}
	job, err := c.prepare(ctx, claim, class, plugin)
	if err != nil {
		return c.notBegun(ctx, claim, err)
	}
	mayBeThere := slices.Contains(claim.Finalizers, FinalizerProvisioning)
	claim, err = c.intend(ctx, claim, class)
	if err != nil {
		return err
	}
	made, err := c.makeStorage(ctx, claim, job)
	if err == nil && c.saveAtOnce(ctx, claim, made) {
		c.toldMade(claim, made)
		return nil
	}
	if err == nil {
		made, err = c.save(ctx, claim, made)
	}
	if err != nil && mayBeThere && !refutes(err) {
		err = volume.Uncertain(err)
	}
	if err != nil {
		return c.provisionFailed(ctx, claim, err)
	}
	c.toldMade(claim, made)
	return c.bind(ctx, claim, made)
}

// waitForOthers has a claim wait that no plugin here makes a volume for.
func (c *Controller) waitForOthers(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, why reason,
) error {
	if why.reason != ReasonExternalProvisioning {
		return c.wait(ctx, claim, why)
	}
	claim, err := c.leaveToOthers(ctx, claim, class)
	if err != nil {
		return err
	}
	return c.wait(ctx, claim, why)
}

func (c *Controller) toldMade(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
	c.options.Events.Eventf(claim, v1.EventTypeNormal, ReasonProvisioningSucceeded, "made volume %q", pv.Name)
}

// provisioner returns the plugin that makes the volumes of class; nil, and why, when it is none of those here.
func (c *Controller) provisioner(class *storagev1.StorageClass) (volume.ProvisionableVolumePlugin, reason) {
	if class.Provisioner == NoProvisioner {
		return nil, failedBinding("no volume fits, and nothing makes volumes of storage class %q: create one", class.Name)
	}
	plugin, err := c.plugins.FindProvisionablePluginByName(class.Provisioner)
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

// leaveToOthers writes into the claim which provisioner is to make its volume, and for which node: that is what those wait for that
// run elsewhere.
func (c *Controller) leaveToOthers(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass,
) (*v1.PersistentVolumeClaim, error) {
	changed := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, AnnStorageProvisioner, class.Provisioner)
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, annBetaStorageProvisioner, class.Provisioner)
	if node := c.selectedNode(claim); waitsForConsumer(class) && node != "" {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, AnnSelectedNode, string(node))
	}
	if maps.Equal(changed.Annotations, claim.Annotations) {
		return claim, nil
	}
	return c.updateClaim(ctx, changed)
}

// intend writes to the claim that a volume is about to be made for it, before anything is made.
func (c *Controller) intend(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass,
) (*v1.PersistentVolumeClaim, error) {
	if claim.Annotations[AnnStorageProvisioner] == class.Provisioner && slices.Contains(claim.Finalizers, FinalizerProvisioning) {
		return claim, c.confirm(ctx, claim)
	}
	changed := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, AnnStorageProvisioner, class.Provisioner)
	if !slices.Contains(changed.Finalizers, FinalizerProvisioning) {
		changed.Finalizers = append(changed.Finalizers, FinalizerProvisioning)
	}
	if node := c.selectedNode(claim); waitsForConsumer(class) && c.options.NodeName == "" {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, AnnSelectedNode, string(node)) // It stays whatever becomes of the pod.
	}
	withoutVolume(changed, v1.ClaimPending)
	return c.updateClaim(ctx, changed)
}

// provisioning is what a volume is made with.
type provisioning struct {
	class  *storagev1.StorageClass
	plugin volume.ProvisionableVolumePlugin
	node   *v1.Node             // for which it is made; nil unless the class waits for its first consumer
	source *v1.PersistentVolume // whose content it gets; nil for none
}

// prepare refuses what cannot work before anything is begun.
func (c *Controller) prepare(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, plugin volume.ProvisionableVolumePlugin,
) (provisioning, error) {
	if len(class.MountOptions) > 0 && !c.plugins.SupportsMountOption(plugin.GetPluginName()) {
		return provisioning{}, fmt.Errorf("plugin %q takes no mount options: take those of storage class %q away: %w",
			plugin.GetPluginName(), class.Name, volume.ErrInfeasible)
	}
	node, err := c.nodeFor(ctx, claim, class)
	if err != nil {
		return provisioning{}, err
	}
	source, err := c.sourceOf(ctx, claim, plugin)
	return provisioning{class: class, plugin: plugin, node: node, source: source}, err
}

// notBegun says why provisioning cannot begin; it is tried again. What an earlier attempt left on the claim stays.
func (c *Controller) notBegun(ctx context.Context, claim *v1.PersistentVolumeClaim, err error) error {
	failed := &callError{uid: claim.UID, err: fmt.Errorf("claim %q gets no volume: %w", store.NameOf(claim), err)}
	if err := c.wait(ctx, claim, provisioningFailed(err)); err != nil {
		failed.err = errors.Join(failed.err, err)
	}
	return failed
}

func provisioningFailed(err error) reason {
	return reason{eventType: v1.EventTypeWarning, reason: ReasonProvisioningFailed, message: err.Error(), err: err}
}

// makeVolume calls the provisioner and keeps what it made in the store.
func (c *Controller) makeVolume(
	ctx context.Context, claim *v1.PersistentVolumeClaim, job provisioning,
) (*v1.PersistentVolume, error) {
	pv, err := c.makeStorage(ctx, claim, job)
	if err != nil {
		return nil, err
	}
	return c.save(ctx, claim, pv)
}

// makeStorage calls the provisioner, and returns the volume that it made as it is to be stored.
func (c *Controller) makeStorage(
	ctx context.Context, claim *v1.PersistentVolumeClaim, job provisioning,
) (*v1.PersistentVolume, error) {
	pv, err := c.callProvision(ctx, claim, job)
	if err != nil {
		return nil, err
	}
	complete(pv, claim, job.class)
	if err := checkProvisioned(pv, claim); err != nil {
		return nil, c.discard(ctx, claim, pv, fmt.Errorf("plugin %q made what was not asked for: %w", job.plugin.GetPluginName(), err))
	}
	return pv, nil
}

func (c *Controller) callProvision(
	ctx context.Context, claim *v1.PersistentVolumeClaim, job provisioning,
) (*v1.PersistentVolume, error) {
	class := job.class
	options := volume.VolumeOptions{
		PersistentVolumeReclaimPolicy: reclaimPolicy(class),
		MountOptions:                  slices.Clone(class.MountOptions),
		PVName:                        provisionedName(claim),
		PVC:                           claim.DeepCopy(),
		Parameters:                    maps.Clone(class.Parameters),
		Source:                        job.source.DeepCopy(),
	}
	name := pluginCall{plugin: job.plugin.GetPluginName(), method: "Provision", volume: options.PVName}
	name.secrets = options.Secrets(c.plugins.PublicKeys(name.plugin))
	topologies := class.DeepCopy().AllowedTopologies
	var made *v1.PersistentVolume
	err := c.call(ctx, name, func(ctx context.Context) error {
		provisioner, err := job.plugin.NewProvisioner(options)
		if err != nil {
			return err
		}
		made, err = provisioner.Provision(ctx, job.node, topologies)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case made == nil:
		return nil, volume.Uncertain(fmt.Errorf("%s returned neither a volume nor an error: %w", name, volume.ErrInvalid))
	}
	return made.DeepCopy(), nil
}

// nodeFor returns the node that the volume is made for: nil unless the class waits for its first consumer.
func (c *Controller) nodeFor(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (*v1.Node, error) {
	if !waitsForConsumer(class) {
		return nil, nil
	}
	name := c.selectedNode(claim)
	node, err := store.Get[*v1.Node](ctx, c.store, "", string(name))
	switch {
	case err == nil:
		return node, nil
	case errors.Is(err, store.ErrNotFound) && name == c.options.NodeName:
		return namedNode(name), nil
	}
	return nil, volume.Transient(fmt.Errorf("node %q, for which the volume is to be made: %w", name, err))
}

// complete fills in what the controller, not the plugin, knows of a new volume.
func complete(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) {
	pv.Namespace, pv.ResourceVersion, pv.UID = "", "", ""
	pv.Spec.ClaimRef = claimRef(claim)
	pv.Spec.StorageClassName = class.Name
	pv.Spec.VolumeAttributesClassName = claim.Spec.VolumeAttributesClassName
	pv.Status = v1.PersistentVolumeStatus{Phase: v1.VolumePending}
	if pv.Spec.PersistentVolumeReclaimPolicy == "" {
		pv.Spec.PersistentVolumeReclaimPolicy = reclaimPolicy(class)
	}
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, AnnBoundByController, yes)
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, AnnDynamicallyProvisioned, class.Provisioner)
	protect(&pv.ObjectMeta, FinalizerVolumeProtection)
	if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete && !slices.Contains(pv.Finalizers, FinalizerVolume) {
		pv.Finalizers = append(pv.Finalizers, FinalizerVolume)
	}
}

func reclaimPolicy(class *storagev1.StorageClass) v1.PersistentVolumeReclaimPolicy {
	if class.ReclaimPolicy == nil {
		return v1.PersistentVolumeReclaimDelete
	}
	return *class.ReclaimPolicy
}

// checkProvisioned holds a plugin to what it was asked for.
func checkProvisioned(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) error {
	size, want := capacity(pv), claim.Spec.Resources.Requests[v1.ResourceStorage]
	switch {
	case pv.Name != provisionedName(claim):
		return fmt.Errorf("the volume is named %q, not %q: %w", pv.Name, provisionedName(claim), volume.ErrInvalid)
	case !large(claim, pv):
		return fmt.Errorf("the volume holds %s, not %s: %w", size.String(), want.String(), volume.ErrInvalid)
	case !sameMode(claim, pv):
		return fmt.Errorf("the volume's mode is %s: %w", modeOf(pv.Spec.VolumeMode), volume.ErrInvalid)
	case !hasModes(claim, pv):
		return fmt.Errorf("the volume's access modes are %v, not %v: %w", pv.Spec.AccessModes, claim.Spec.AccessModes, volume.ErrInvalid)
	}
	return nil
}

// save creates the volume's object. That a crash left it there already is success. When the store can never take it,
// the storage is deleted; when it cannot now, provisioning is done again later, which finds the storage by its name.
func (c *Controller) save(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	saved, err := store.Create(ctx, c.store, pv)
	switch {
	case err == nil:
		c.seen(saved)
		return saved, nil
	case errors.Is(err, store.ErrInvalid):
		return nil, c.discard(ctx, claim, pv, fmt.Errorf("the store refuses volume %q: %w", pv.Name, err))
	case !errors.Is(err, store.ErrAlreadyExists):
		return nil, volume.Uncertain(fmt.Errorf("volume %q was made but not stored: %w", pv.Name, err))
	}
	saved, err = store.Get[*v1.PersistentVolume](ctx, c.store, "", pv.Name)
	if err != nil {
		return nil, volume.Uncertain(fmt.Errorf("volume %q was stored before: %w", pv.Name, err))
	}
	if !ownedBy(saved, claim) {
		return nil, volume.Uncertain(fmt.Errorf("volume %q has the name of the one for claim %q but is not its: rename or delete it: %w",
			pv.Name, store.NameOf(claim), volume.ErrInUse))
	}
	return saved, nil
}

// discard deletes storage that cannot be recorded, and returns why it cannot. If that fails too, the outcome is uncertain,
// so that the claim keeps its finalizer and everything is tried again.
func (c *Controller) discard(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, cause error) error {
	plugin, err := c.deleter(pv)
	if err == nil {
		err = c.callDelete(ctx, plugin, pv)
	}
	if err == nil {
		return cause
	}
	c.options.Events.Eventf(claim, v1.EventTypeWarning, ReasonProvisioningCleanupFailed,
		"the storage of volume %q could not be deleted: %v", pv.Name, err)
	return volume.Uncertain(errors.Join(cause, fmt.Errorf("and its storage could not be deleted: %w", err)))
}

// refutes reports whether the error of a provisioner says that there is no storage, also when an earlier attempt ended in a way
// that nobody knows: one that has made the volume finds it by its name, and does not call it impossible. Any other error only
// says that this attempt has made nothing.
func refutes(err error) bool {
	return outcome.ClassOf(err) == outcome.Final &&
		(errors.Is(err, volume.ErrInfeasible) || errors.Is(err, volume.ErrUnsupported) || errors.Is(err, volume.ErrInvalid))
}

// provisionFailed says so; it is tried again. When nothing is left behind the claim's finalizer goes, and with it, unless the
// same may work in a while, a node that a scheduler selected, so that it may select another.
func (c *Controller) provisionFailed(ctx context.Context, claim *v1.PersistentVolumeClaim, err error) error {
	failed := &callError{uid: claim.UID, err: fmt.Errorf("claim %q gets no volume: %w", store.NameOf(claim), err)}
	if ctx.Err() != nil {
		return failed
	}
	why := provisioningFailed(err)
	c.pending.set(pendingFor(claim, why))
	c.tell(claim, why)
	changed := claim.DeepCopy()
	news := why.writeTo(changed)
	if outcome.ClassOf(err) != outcome.Uncertain {
		dropFinalizer(&changed.ObjectMeta, FinalizerProvisioning)
	} else if !news {
		return failed
	}
	if c.options.NodeName == "" && outcome.ClassOf(err) == outcome.Final {
		delete(changed.Annotations, AnnSelectedNode)
	}
	if _, err := c.updateClaim(ctx, changed); err != nil && !errors.Is(err, store.ErrNotFound) {
		failed.err = errors.Join(failed.err, err)
	}
	return failed
}

// syncDying ends what was begun for a claim that is deleted before it was bound. Whether storage was made can only be
// learnt by provisioning to the end; the volume is then released, and reclaimed, as soon as the claim is gone.
func (c *Controller) syncDying(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	c.served(store.NameOf(claim))
	if !slices.Contains(claim.Finalizers, FinalizerProvisioning) {
		return c.unprotectClaim(ctx, claim)
	}
	made, err := c.provisioned(ctx, claim)
	if err != nil {
		return err
	}
	if made == nil {
		if err := c.finishProvisioning(ctx, claim); err != nil {
			return err
		}
	}
	changed := claim.DeepCopy()
	dropFinalizer(&changed.ObjectMeta, FinalizerProvisioning)
	updated, err := c.updateClaim(ctx, changed)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.unprotectClaim(ctx, updated)
}

// finishProvisioning returns nil when either the volume is in the store, or nothing was left behind.
func (c *Controller) finishProvisioning(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if err := c.work.held(item{claimItem, store.NameOf(claim)}, claim.UID); err != nil {
		return err
	}
	class, ok := c.classes.Get(volumeKey(classOf(claim)))
	if !ok {
		return c.orphaned(claim, fmt.Errorf("storage class %q is gone: create it again", classOf(claim)))
	}
	plugin, why := c.provisioner(class)
	if plugin == nil {
		return c.orphaned(claim, errors.New(why.message))
	}
	// Without its source a copy is not made any more; one that is there is found by its name.
	job, err := c.prepare(ctx, claim, class, plugin)
	if err != nil && !errors.Is(err, errSourceGone) {
		return c.orphaned(claim, err)
	}
	_, err = c.makeVolume(ctx, claim, job)
	if err == nil || refutes(err) {
		return nil
	}
	return c.orphaned(claim, err)
}

// orphaned says that it is not known whether storage was made for a claim that is being deleted.
func (c *Controller) orphaned(claim *v1.PersistentVolumeClaim, err error) error {
	c.options.Events.Eventf(claim, v1.EventTypeWarning, ReasonProvisioningCleanupFailed,
		"the claim stays until it is known whether storage was made for it: %v", err)
	return &callError{uid: claim.UID, err: fmt.Errorf("claim %q cannot go: %w", store.NameOf(claim), err)}
}

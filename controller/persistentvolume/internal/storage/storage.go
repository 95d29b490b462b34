// Package storage calls plugins to create, delete and recycle the storage of volumes.
package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/internal/call"
	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Plugins calls plugins for storage. Make it with [New]. Its methods may be called from several goroutines at once.
type Plugins struct {
	plugins *volume.VolumePluginMgr
	store   store.Store
	events  volume.EventRecorder
	// snapshots finds the snapshots of data sources; nil if there is no controller for them.
	snapshots Snapshots
	calls     *call.Calls
}

// New returns Plugins. timeout bounds each call.
func New(plugins *volume.VolumePluginMgr, s store.Store, events volume.EventRecorder, timeout time.Duration) *Plugins {
	return &Plugins{plugins: plugins, store: s, events: events, calls: call.New(timeout)}
}

// Restoring enables volumes from snapshots, which s finds. Call it before any other method.
func (p *Plugins) Restoring(s Snapshots) *Plugins {
	p.snapshots = s
	return p
}

// Abandoned returns the names of the abandoned calls that still run.
func (p *Plugins) Abandoned() []string { return p.calls.Running() }

// Job is the input of the creation of a volume.
type Job struct {
	class  *storagev1.StorageClass
	plugin volume.ProvisionableVolumePlugin
	node   *v1.Node             // the node of the first consumer; nil unless the class waits for it
	source *v1.PersistentVolume // the volume to copy; nil for none
	// snapshot is the snapshot to restore; nil for none.
	snapshot *volume.Snapshot
	// populate is the data source of a populator; empty for none.
	populate string
	// attributes is the VolumeAttributesClass; nil for none.
	attributes *storagev1.VolumeAttributesClass
}

// With returns the job with a VolumeAttributesClass; nil means none.
func (j Job) With(attributes *storagev1.VolumeAttributesClass) Job {
	j.attributes = attributes
	return j
}

// IsFilled reports whether the new volume gets the content of another claim's volume, or of a snapshot.
func (j Job) IsFilled() bool { return j.source != nil || j.snapshot != nil }

// Prepare checks a job before anything begins. With an error that matches [ErrSourceGone] it returns a Job without a
// source.
func (p *Plugins) Prepare(
	ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, plugin volume.ProvisionableVolumePlugin, node *v1.Node,
) (Job, error) {
	if len(class.MountOptions) > 0 && !p.plugins.SupportsMountOption(plugin.GetPluginName()) {
		return Job{}, fmt.Errorf("plugin %q takes no mount options: take those of storage class %q away: %w",
			plugin.GetPluginName(), class.Name, volume.ErrInfeasible)
	}
	job := Job{class: class, plugin: plugin, node: node}
	err := p.fill(ctx, claim, &job)
	return job, err
}

// Make calls the plugin to create the storage of a claim, and returns the volume to store.
func (p *Plugins) Make(ctx context.Context, claim *v1.PersistentVolumeClaim, job Job) (*v1.PersistentVolume, error) {
	pv, err := p.provision(ctx, claim, job)
	if err != nil {
		return nil, err
	}
	complete(pv, claim, job)
	if err := fit.CheckProvisioned(pv, claim); err != nil {
		return nil, p.Discard(ctx, claim, pv, fmt.Errorf("plugin %q made what was not asked for: %w", job.plugin.GetPluginName(), err))
	}
	return pv, nil
}

func (p *Plugins) provision(ctx context.Context, claim *v1.PersistentVolumeClaim, job Job) (*v1.PersistentVolume, error) {
	class := job.class
	options := volume.VolumeOptions{
		PersistentVolumeReclaimPolicy: objects.ReclaimPolicy(class),
		MountOptions:                  slices.Clone(class.MountOptions),
		PVName:                        objects.ProvisionedName(claim),
		PVC:                           claim.DeepCopy(),
		Parameters:                    maps.Clone(class.Parameters),
		Source:                        job.source.DeepCopy(),
	}
	if job.populate != "" {
		options.PVC.Spec.DataSource, options.PVC.Spec.DataSourceRef = nil, nil // The plugin creates an empty volume.
	}
	if job.snapshot != nil {
		snapshot := *job.snapshot
		options.Snapshot = &snapshot
	}
	if job.attributes != nil {
		options.MutableParameters = maps.Clone(job.attributes.Parameters)
	}
	name := call.Call{Plugin: job.plugin.GetPluginName(), Method: "Provision", Object: object(options.PVName)}
	name.Secrets = options.Secrets(p.plugins.PublicKeys(name.Plugin))
	topologies := class.DeepCopy().AllowedTopologies
	var made *v1.PersistentVolume
	err := p.calls.Do(ctx, name, func(ctx context.Context) error {
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

// object names a volume in errors of calls.
func object(volumeName string) string { return fmt.Sprintf("volume %q", volumeName) }

// complete sets the fields of a new volume that the controller, not the plugin, knows.
func complete(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, job Job) {
	class := job.class
	pv.Namespace, pv.ResourceVersion, pv.UID = "", "", ""
	pv.Spec.ClaimRef = objects.ClaimRef(claim)
	pv.Spec.StorageClassName = class.Name
	pv.Spec.VolumeAttributesClassName = nil
	if job.attributes != nil {
		pv.Spec.VolumeAttributesClassName = &job.attributes.Name
	}
	pv.Status = v1.PersistentVolumeStatus{Phase: v1.VolumePending}
	if pv.Spec.PersistentVolumeReclaimPolicy == "" {
		pv.Spec.PersistentVolumeReclaimPolicy = objects.ReclaimPolicy(class)
	}
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, objects.AnnBoundByController, objects.Yes)
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, objects.AnnDynamicallyProvisioned, class.Provisioner)
	for _, mark := range []string{objects.AnnPopulate, objects.AnnPopulating, objects.AnnPopulated} {
		delete(pv.Annotations, mark)
	}
	if job.populate != "" {
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, objects.AnnPopulate, job.populate)
	}
	objects.Protect(&pv.ObjectMeta, objects.FinalizerVolumeProtection)
	if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete && !slices.Contains(pv.Finalizers, objects.FinalizerVolume) {
		pv.Finalizers = append(pv.Finalizers, objects.FinalizerVolume)
	}
}

// Discard deletes storage that cannot be recorded, and returns cause. If a volume in the store, which may be another
// claim's, has the name or the storage, the storage stays. If the storage stays, or the deletion fails, the error is
// uncertain: the claim keeps its finalizer, and the provisioning is retried.
func (p *Plugins) Discard(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, cause error) error {
	err := p.checkUnrecorded(ctx, pv)
	if err == nil {
		err = p.discard(ctx, pv)
	}
	if err == nil {
		return cause
	}
	p.events.Eventf(claim, v1.EventTypeWarning, objects.ReasonProvisioningCleanupFailed,
		"the storage of volume %q could not be deleted: %v", pv.Name, err)
	return volume.Uncertain(errors.Join(cause, fmt.Errorf("and its storage could not be deleted: %w", err)))
}

func (p *Plugins) discard(ctx context.Context, pv *v1.PersistentVolume) error {
	plugin, err := p.Deleter(pv)
	if err != nil {
		return err
	}
	return p.Delete(ctx, plugin, pv)
}

// checkUnrecorded refuses a volume if a volume in the store has its name, its storage, or a part of that.
func (p *Plugins) checkUnrecorded(ctx context.Context, pv *v1.PersistentVolume) error {
	stored, _, err := store.ListOf[*v1.PersistentVolume](ctx, p.store, "")
	if err != nil {
		return fmt.Errorf("the volumes that may have the storage of volume %q: %w", pv.Name, err)
	}
	for _, other := range stored {
		if other.Name == pv.Name {
			return fmt.Errorf("volume %q has an object: %w", pv.Name, volume.ErrInUse)
		}
		if objects.MayContainStorageOf(pv, other) {
			return fmt.Errorf("volume %q has the same storage, or a part of it: %w", other.Name, volume.ErrInUse)
		}
	}
	return nil
}

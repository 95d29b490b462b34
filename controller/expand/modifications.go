package expand

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// modifications are the changes that give volumes the attributes of the classes that their claims name.
type modifications struct {
	plugins  *volume.VolumePluginMgr
	executor *operationexecutor.Executor
	classes  *store.Mirror[*storagev1.VolumeAttributesClass]
	blocked  *blockedClaims
}

var _ change = (*modifications)(nil)

// request names the class that the claim names and the one that its volume gets next, each with its UID: a class that was not
// there, or was made again, may be tried at once.
func (m *modifications) request(claim *v1.PersistentVolumeClaim) request {
	wanted, next := named(claim.Spec.VolumeAttributesClassName), operationexecutor.ModificationClass(claim)
	return request{uid: claim.UID, value: fmt.Sprint(wanted, "/", m.uid(wanted), "/", next, "/", m.uid(next))}
}

// uid returns the UID of a class. Classes of a store without UIDs differ by their version.
func (m *modifications) uid(name string) string {
	class, there := m.classes.Get(types.NamespacedName{Name: name})
	if !there {
		return ""
	}
	return string(class.UID) + "." + class.ResourceVersion
}

func (m *modifications) blockedClaims() *blockedClaims { return m.blocked }

func (m *modifications) isWanted(claim *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) bool {
	return operationexecutor.NeedsModification(claim)
}

func (m *modifications) isUncertain(claim *v1.PersistentVolumeClaim) bool {
	return operationexecutor.IsModificationUncertain(claim)
}

func (m *modifications) mayTry(claim *v1.PersistentVolumeClaim) bool {
	return !m.blocked.mustWait(store.NameOf(claim), m.request(claim))
}

// allowed returns why a claim waits. A claim waits for a missing class once its status says so, or cannot say so. Before the
// classes are listed, all are missing here, and the operation reads the store.
func (m *modifications) allowed(claim *v1.PersistentVolumeClaim) error {
	name := operationexecutor.ModificationClass(claim)
	if _, there := m.classes.Get(types.NamespacedName{Name: name}); there || name == "" || !m.classes.HasSynced() {
		return nil
	}
	status := claim.Status.ModifyVolumeStatus
	said := status != nil && status.Status == v1.PersistentVolumeClaimModifyVolumePending && status.TargetVolumeAttributesClassName == name
	if !said && !m.isUncertain(claim) {
		return nil
	}
	return fmt.Errorf("volume attributes class %q does not exist: create it, or name another: %w", name, store.ErrNotFound)
}

func (m *modifications) plugin(spec *volume.Spec) (string, error) {
	plugin, err := m.plugins.FindModifiablePluginBySpec(spec)
	if err != nil {
		return "", err
	}
	return plugin.GetPluginName(), nil
}

func (m *modifications) begin(ctx context.Context, v target) (*operationexecutor.Operation, error) {
	return m.executor.ModifyVolume(ctx, operationexecutor.VolumeToModify{VolumeName: v.name, VolumeSpec: v.spec, PluginName: v.plugin})
}

func (m *modifications) events() changeEvents {
	return changeEvents{
		failed: operationexecutor.ReasonVolumeModifyFailed, external: "ExternalModifying",
		message: "the claim names a class of attributes, and its volume is not modified here: %v",
	}
}

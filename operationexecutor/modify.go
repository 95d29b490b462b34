package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// ModifyVolume begins to give a volume the attributes of the class that its claim names, on the control plane. The claim's
// status records the progress before and after the plugin is called, so an interrupted modification continues there: one that
// may have taken effect is finished before the claim gets another class. If there is nothing to do, ModifyVolume succeeds at
// once. The error matches volume.ErrInfeasible if the volume can never have the attributes, and volume.ErrNotFound if the
// class does not exist.
func (e *Executor) ModifyVolume(ctx context.Context, v VolumeToModify) (*Operation, error) {
	return e.begin(ctx, Key{Volume: v.VolumeName}, e.generator.GenerateModifyVolumeFunc(v))
}

// modifying is one modification by the control plane.
type modifying struct {
	*generator
	x *execution
	v VolumeToModify

	plugin volume.ModifiableVolumePlugin
	// claim is the claim as it was last read or written; nil before that.
	claim *v1.PersistentVolumeClaim
}

// GenerateModifyVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateModifyVolumeFunc(v VolumeToModify) *Operation {
	info := OperationInfo{Kind: OpModify, PluginName: v.PluginName, VolumeName: v.VolumeName}
	return newOperation(info, &modifying{generator: g, v: v})
}

// ended writes an event when the operation failed.
func (m *modifying) ended(err error) error {
	if err != nil {
		m.event(m.object(), v1.EventTypeWarning, ReasonVolumeModifyFailed, "modifying volume %q failed: %v", m.v.VolumeSpec.Name(), err)
	}
	return err
}

func (m *modifying) run(ctx context.Context, x *execution) (err error) {
	m.x = x
	if err := m.prepare(ctx); err != nil {
		return err
	}
	if m.claim, err = m.readClaim(ctx, m.x, m.v.VolumeSpec); err != nil {
		return err
	}
	switch plan := planModify(m.claim); plan.step {
	case modifyVolume:
		return m.modifyTo(ctx, plan.class)
	case modifyWithdraw:
		return m.withdraw(ctx)
	case modifyNothing:
	}
	return nil
}

// prepare finds the plugin and refuses volumes that cannot be modified.
func (m *modifying) prepare(ctx context.Context) (err error) {
	if m.claims == nil || m.attributes == nil {
		return errors.New("a modification cannot be written down: give GeneratorOptions Claims and Attributes")
	}
	if !claimed(m.v.VolumeSpec) {
		return fmt.Errorf("volume %q is no PersistentVolume with a claim, and so cannot be modified: %w", m.v.VolumeSpec.Name(), volume.ErrUnsupported)
	}
	spec := m.copyOf(m.x, m.v.VolumeSpec)
	m.plugin, err = find(ctx, m.x, func() (volume.ModifiableVolumePlugin, error) {
		return m.plugins.FindModifiablePluginBySpec(spec)
	})
	return err
}

// modifyTo records the modification in the claim, modifies the volume, and records the result.
func (m *modifying) modifyTo(ctx context.Context, name string) error {
	class, err := m.class(ctx, name)
	if err != nil {
		return err
	}
	if !volume.IsDriverOfPlugin(class.DriverName, m.x.pluginName()) {
		return m.infeasible(ctx, name, fmt.Errorf("volume attributes class %q is for driver %q, and the volume is of plugin %q: name a class of that plugin: %w",
			name, class.DriverName, m.x.pluginName(), volume.ErrInfeasible))
	}
	// An earlier call may still take effect: the end of this one says nothing about that.
	wasUncertain := IsModificationUncertain(m.claim)
	if err := m.mark(ctx, Modification{Status: v1.PersistentVolumeClaimModifyVolumeInProgress, Class: name}); err != nil {
		return err
	}
	spec := m.copyOf(m.x, m.v.VolumeSpec)
	m.x.parameters = class.Parameters
	err = m.x.change(ctx, "ModifyVolume", func(ctx context.Context) error {
		return m.plugin.ModifyVolume(ctx, spec, maps.Clone(class.Parameters))
	})
	switch {
	case err == nil:
		return m.finish(ctx, name)
	case wasUncertain:
		return m.failedAgain(ctx, name, err)
	}
	return m.failed(ctx, name, err)
}

// class returns a class. A claim whose class does not exist waits for it.
func (m *modifying) class(ctx context.Context, name string) (class *storagev1.VolumeAttributesClass, err error) {
	err = m.x.port(ctx, "AttributesClass", func(ctx context.Context) error {
		class, err = m.attributes.AttributesClass(ctx, name)
		switch {
		case errors.Is(err, volume.ErrNotFound):
			return fmt.Errorf("volume attributes class %q does not exist: create it, or name another: %w", name, err)
		case err == nil && class == nil:
			err = errors.New("there is none")
		}
		if err != nil {
			return volume.Transient(fmt.Errorf("volume attributes class %q could not be read: %w", name, err))
		}
		return nil
	})
	if !errors.Is(err, volume.ErrNotFound) || outcome.ClassOf(err) != Final || IsModificationUncertain(m.claim) {
		return class, err
	}
	if markErr := m.mark(ctx, Modification{Status: v1.PersistentVolumeClaimModifyVolumePending, Class: name}); markErr != nil {
		return nil, notWritten(err, markErr)
	}
	return nil, err
}

// infeasible records that the volume cannot have the class, without a call.
func (m *modifying) infeasible(ctx context.Context, name string, cause error) error {
	if IsModificationUncertain(m.claim) {
		return cause
	}
	return m.markFailed(ctx, Modification{Status: v1.PersistentVolumeClaimModifyVolumeInfeasible, Class: name, Err: cause})
}

// failed records a failure in the claim. A modification that may have taken effect stays one. A call that did not begin is
// recorded like one that changed nothing, since the record before the call says that it may have begun.
func (m *modifying) failed(ctx context.Context, name string, cause error) error {
	failed := Modification{Status: v1.PersistentVolumeClaimModifyVolumeInProgress, Class: name, Err: cause}
	if outcome.ClassOf(cause) == Final && errors.Is(cause, volume.ErrInfeasible) {
		failed.Status = v1.PersistentVolumeClaimModifyVolumeInfeasible
	}
	return m.markFailed(ctx, failed)
}

// failedAgain records a failure after an earlier call that may still take effect. The claim stays uncertain however this call
// ended: only a success tells what the volume has. A call that did not begin has nothing to add to the record before it.
func (m *modifying) failedAgain(ctx context.Context, name string, cause error) error {
	if outcome.ClassOf(cause) == Transient {
		return cause
	}
	failed := Modification{Status: v1.PersistentVolumeClaimModifyVolumeInProgress, Class: name, Err: volume.Uncertain(cause)}
	if err := m.mark(ctx, failed); err != nil {
		return notWritten(cause, err)
	}
	return cause
}

// markFailed writes a failure to the claim and returns its cause.
func (m *modifying) markFailed(ctx context.Context, failed Modification) error {
	if err := m.mark(ctx, failed); err != nil {
		return notWritten(failed.Err, err)
	}
	return failed.Err
}

// finish records that the volume has the attributes: in the PersistentVolume first, so that the claim never says so alone.
func (m *modifying) finish(ctx context.Context, name string) error {
	pv := m.v.VolumeSpec.PersistentVolume
	if named(pv.Spec.VolumeAttributesClassName) != name {
		err := m.x.port(ctx, "SetAttributesClass", func(ctx context.Context) error {
			if _, err := m.attributes.SetAttributesClass(ctx, pv, name); err != nil {
				return volume.Transient(fmt.Errorf("the attributes class of PersistentVolume %q could not be written: %w", pv.Name, err))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := m.mark(ctx, Modification{Class: name}); err != nil {
		return err
	}
	m.event(m.object(), v1.EventTypeNormal, reasonVolumeModifySuccessful, "volume %q has the attributes of class %q", pv.Name, name)
	return nil
}

// withdraw records that the claim wants no other class any more.
func (m *modifying) withdraw(ctx context.Context) error {
	if err := m.mark(ctx, Modification{Class: currentClass(m.claim)}); err != nil {
		return err
	}
	m.event(m.object(), v1.EventTypeNormal, reasonVolumeModifyCanceled, "volume %q is not modified any more", m.v.VolumeSpec.Name())
	return nil
}

// mark writes the progress of the modification to the claim. Its error is transient: another program may have written first.
func (m *modifying) mark(ctx context.Context, modification Modification) error {
	return m.x.port(ctx, "SetModification", func(ctx context.Context) error {
		written, err := m.attributes.SetModification(ctx, m.claim, modification)
		if err == nil && written == nil {
			err = fmt.Errorf("VolumeAttributes returned neither a claim nor an error: %w", volume.ErrInvalid)
		}
		if err != nil {
			return volume.Transient(fmt.Errorf("how far the modification has come could not be written to claim %q: %w",
				volume.GetPersistentVolumeClaimQualifiedName(m.claim), err))
		}
		m.claim = written
		return nil
	})
}

// object returns the object of the events: the claim, or the PersistentVolume until the claim is read.
func (m *modifying) object() runtime.Object {
	if m.claim == nil {
		return volumeObject(m.v.VolumeSpec)
	}
	return m.claim
}

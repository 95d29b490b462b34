package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// detachKey is the key that the volume's attach takes.
func detachKey(v AttachedVolume) Key {
	return attachKey(VolumeToAttach{VolumeName: v.VolumeName, VolumeSpec: v.VolumeSpec, NodeName: v.NodeName})
}

// detaching is one detach operation.
type detaching struct {
	*generator
	x       *execution
	v       AttachedVolume
	options DetachOptions
	state   ActualStateOfWorldAttacherUpdater
	called  bool // whether Detach was called; set when the operation has failed
	intent  Intent
}

// detachment is what the plugin is called with.
type detachment struct {
	detacher   volume.Detacher
	volumeName string
}

// GenerateDetachVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateDetachVolumeFunc(v AttachedVolume, options DetachOptions, actualState ActualStateOfWorldAttacherUpdater) *Operation {
	info := OperationInfo{Kind: OpDetach, PluginName: v.PluginName, VolumeName: v.VolumeName, NodeName: v.NodeName}
	return newOperation(info, &detaching{generator: g, v: v, options: options, state: actualState})
}

// ended takes back that the volume is being withdrawn when it still is attached for certain, and records what became of the
// operation. One that Detach failed on is not reported to the node as attached again: it may not be.
func (d *detaching) ended(err error) error {
	if err != nil && !d.called {
		d.state.AddVolumeToReportAsAttached(d.v.VolumeName, d.v.NodeName)
	}
	if d.recorder == nil {
		return err
	}
	if err != nil {
		d.event(volumeObject(d.v.VolumeSpec), v1.EventTypeWarning, reasonFailedDetachVolume,
			"detaching volume %q from node %q failed: %v", d.v.VolumeName, d.v.NodeName, err)
		return err
	}
	d.event(volumeObject(d.v.VolumeSpec), v1.EventTypeNormal, ReasonSuccessfulDetachVolume,
		"volume %q is detached from node %q", d.v.VolumeName, d.v.NodeName)
	return nil
}

func (d *detaching) run(ctx context.Context, x *execution) error {
	d.x = x
	what, err := d.detachment(ctx)
	if err != nil {
		return err
	}
	if err := d.checkUnused(); err != nil {
		return err
	}
	if err := d.withdraw(ctx); err != nil {
		return err
	}
	if err := d.verifySafe(ctx); err != nil {
		return err
	}
	if err := d.confirm(ctx); err != nil {
		return err
	}
	d.intent = Intent{
		Kind: OpDetach, VolumeName: d.v.VolumeName, PluginName: d.x.pluginName(), Spec: d.v.VolumeSpec,
		NodeName: d.v.NodeName, DevicePath: d.v.DevicePath,
	}
	if err := d.intend(ctx, d.x, d.intent); err != nil {
		return err
	}
	d.x.failed = d.failed
	err = d.x.change(ctx, "Detach", func(ctx context.Context) error {
		return what.detacher.Detach(ctx, what.volumeName, d.v.NodeName)
	})
	if err != nil {
		return err
	}
	d.state.MarkVolumeAsDetached(d.v.VolumeName, d.v.NodeName)
	d.conclude(ctx, d.x, d.intent, IntentForgotten)
	return nil
}

// detachment finds the plugin by its name, so a volume is detached even if its plugin no longer attaches it.
func (d *detaching) detachment(ctx context.Context) (detachment, error) {
	pluginName, volumeName, err := volume.SplitUniqueName(d.v.VolumeName)
	if d.v.PluginName != "" {
		pluginName = d.v.PluginName
	}
	if err != nil && (d.v.PluginName == "" || d.v.VolumeSpec == nil) {
		return detachment{}, err
	}
	plugin, err := find(ctx, d.x, func() (volume.AttachableVolumePlugin, error) {
		return d.plugins.FindAttachablePluginByName(pluginName)
	})
	if err != nil {
		return detachment{}, err
	}
	if spec := d.copyOf(d.x, d.v.VolumeSpec); spec != nil {
		volumeName, err = construct(ctx, d.x, "GetVolumeName", func() (string, error) { return plugin.GetVolumeName(spec) })
		if err != nil {
			return detachment{}, err
		}
	}
	detacher, err := construct(ctx, d.x, "NewDetacher", plugin.NewDetacher)
	return detachment{detacher: detacher, volumeName: volumeName}, err
}

// checkUnused refuses while the state, which may be that of the node itself, knows that the volume is or may be staged or
// set up.
func (d *detaching) checkUnused() error {
	if err := checkNoPods(d.state, d.v.VolumeName); err != nil {
		return err
	}
	own, ok := d.state.(ActualStateOfWorldMounterUpdater)
	if !ok {
		return nil
	}
	if device := own.GetDeviceMountState(d.v.VolumeName); device != DeviceNotMounted {
		return fmt.Errorf("the volume is still %v: %w", device, volume.ErrInUse)
	}
	return nil
}

// withdraw removes the volume from the node's report before anything else happens, so the node does not begin to use the
// volume meanwhile.
func (d *detaching) withdraw(ctx context.Context) error {
	if err := d.state.RemoveVolumeFromReportAsAttached(d.v.VolumeName, d.v.NodeName); err != nil {
		return fmt.Errorf("the volume could not be withdrawn from node %q: %w", d.v.NodeName, err)
	}
	if d.reporter == nil {
		return nil
	}
	return d.x.port(ctx, "ReportAttached", func(ctx context.Context) error {
		if err := d.reporter.ReportAttached(ctx, d.v.NodeName); err != nil {
			return volume.Transient(fmt.Errorf("node %q could not be told that the volume is withdrawn: %w", d.v.NodeName, err))
		}
		return nil
	})
}

// verifySafe refuses, if that is asked for, while the node says that it uses the volume, and while it cannot be asked. It
// changes nothing, and so its failure makes nothing uncertain.
func (d *detaching) verifySafe(ctx context.Context) error {
	if !d.options.VerifySafeToDetach {
		return nil
	}
	if d.nodeReader == nil {
		return errors.New("whether the volume is in use cannot be asked: give GeneratorOptions a NodeReader")
	}
	return d.x.port(ctx, "VolumesInUse", func(ctx context.Context) error {
		inUse, err := d.nodeReader.VolumesInUse(ctx, d.v.NodeName)
		if err != nil {
			return volume.Transient(fmt.Errorf("which volumes node %q uses is not known: %w", d.v.NodeName, err))
		}
		if slices.Contains(inUse, d.v.VolumeName) {
			return fmt.Errorf("node %q still uses the volume: %w", d.v.NodeName, volume.ErrInUse)
		}
		return nil
	})
}

// confirm asks the caller who wants the detach for the last time. It changes nothing.
func (d *detaching) confirm(ctx context.Context) error {
	if d.options.Confirm == nil {
		return nil
	}
	return d.x.port(ctx, "Confirm", d.options.Confirm)
}

// failed records that the volume may or may not be attached, unless the plugin was never called.
func (d *detaching) failed(ctx context.Context, err error) error {
	d.called = !notCalled(err)
	d.conclude(ctx, d.x, d.intent, IntentUncertain)
	if !d.called {
		return err
	}
	return uncertainToo(err, d.state.MarkVolumeAsUncertain(d.v.VolumeName, d.v.VolumeSpec, d.v.NodeName))
}

package volumetest

import (
	"maps"
	"strings"

	"github.com/volumekit/volumekit/volume"
)

func secretCases() []Case {
	return []Case{{
		Rule: "T1", Group: "secrets", Name: "values of options",
		Sentence: "The value of a mount option or of a parameter MUST NOT appear in an error, in a path, in an event or in the name of a PersistentVolume.",
		run:      secretsAppearNowhere,
	}, {
		Rule: "T2", Group: "secrets", Name: "the spec of a record",
		Sentence: "CanSupport, GetVolumeName and GetDeviceMountPath MUST NOT depend on values that PublicKeys does not name: after a restart the spec comes from a record, which lacks them.",
		run:      recordedSpecsAreTheSame,
	}}
}

// recordedSpecsAreTheSame compares what the plugin says of a spec and of what is recorded of it.
func recordedSpecsAreTheSame(e *env) {
	for _, spec := range []*volume.Spec{copySpec(e.newSpec()), withSecret(copySpec(e.newSpec()), "Secret-"+nextID())} {
		if !e.plugin.CanSupport(spec) {
			continue
		}
		recorded := spec.Recorded(e.registry.PublicKeys(e.plugin.GetPluginName()))
		if !e.plugin.CanSupport(recorded) {
			e.broken("CanSupport is true of the spec and false of what is recorded of it")
		}
		e.sameOf("GetVolumeName", e.plugin.GetVolumeName, spec, recorded)
		if yes, err := e.registry.IsDeviceMountable(spec); err == nil && yes {
			e.sameOf("GetDeviceMountPath", e.deviceMounter(spec).GetDeviceMountPath, spec, recorded)
		}
	}
}

// sameOf compares what a method says of two specs. What it refuses is never set up.
func (e *env) sameOf(call string, ask func(*volume.Spec) (string, error), spec, recorded *volume.Spec) {
	e.t.Helper()
	want, err := ask(spec)
	if err != nil {
		return
	}
	if got, err := ask(recorded); err != nil || got != want {
		e.broken("%s is %q of the spec, and of what is recorded of it %q (%v): declare the keys by volume.PublicKeyDeclarer", call, want, got, err)
	}
}

// secretsAppearNowhere gives the plugin options and parameters that it does not know, so that it has something to complain
// of: whether it does, and when, is its own affair.
func secretsAppearNowhere(e *env) {
	secret := "Secret-" + nextID()
	spec := withSecret(copySpec(e.newSpec()), secret)
	d, begun := &secretCheck{e: e, secret: secret}, len(e.undo)
	name, err := e.plugin.GetVolumeName(spec)
	d.look("GetVolumeName", name, err)
	d.attach(spec, name)
	d.stage(spec)
	d.setUp(spec)
	e.undoTo(begun)
	d.recycle(spec)
	d.provision()
}

// withSecret puts the secret wherever a spec has room for one.
func withSecret(spec *volume.Spec, secret string) *volume.Spec {
	option := "volumetest-password=" + secret
	if pv := spec.PersistentVolume; pv != nil {
		pv.Spec.MountOptions = append(pv.Spec.MountOptions, option)
		if csi := pv.Spec.CSI; csi != nil {
			csi.VolumeAttributes = with(csi.VolumeAttributes, secret)
		}
		return spec
	}
	if csi := spec.Volume.CSI; csi != nil {
		csi.VolumeAttributes = with(csi.VolumeAttributes, secret)
	}
	if flex := spec.Volume.FlexVolume; flex != nil {
		flex.Options = with(flex.Options, secret)
	}
	return spec
}

func with(parameters map[string]string, secret string) map[string]string {
	more := map[string]string{"volumetest-password": secret}
	maps.Copy(more, parameters)
	return more
}

// secretCheck looks at what the plugin says.
type secretCheck struct {
	e      *env
	secret string
}

func (d *secretCheck) look(call, path string, err error) {
	d.e.t.Helper()
	if err != nil && strings.Contains(err.Error(), d.secret) {
		d.e.broken("the error of %s contains it: %s", call, strings.ReplaceAll(err.Error(), d.secret, "***"))
	}
	if strings.Contains(path, d.secret) {
		d.e.broken("what %s returned contains it: %s", call, strings.ReplaceAll(path, d.secret, "***"))
	}
}

// recycle recycles the volume that was torn down.
func (d *secretCheck) recycle(spec *volume.Spec) {
	d.e.t.Helper()
	plugin, err := d.e.registry.FindRecyclablePluginBySpec(spec)
	if err != nil || spec.PersistentVolume == nil {
		return
	}
	err = plugin.Recycle(d.e.ctx(), spec.Name(), spec, func(_, message string) { d.look("an event of Recycle", message, nil) })
	d.look("Recycle", "", err)
}

// provision makes a volume of a class that has the secret in its parameters and mount options.
func (d *secretCheck) provision() {
	d.e.t.Helper()
	if !d.e.capabilities.Has(volume.CapProvision) {
		return
	}
	options := d.e.volumeOptions()
	options.Parameters = with(options.Parameters, d.secret)
	for _, mountOptions := range [][]string{nil, {"volumetest-password=" + d.secret}} {
		options.MountOptions = mountOptions
		pv, err := d.e.tryProvision(options)
		d.look("Provision", "", err)
		if err == nil {
			d.e.later(func() { d.e.tryDelete(volume.NewSpecFromPersistentVolume(pv, false)) })
			name, err := d.e.plugin.GetVolumeName(volume.NewSpecFromPersistentVolume(pv, false))
			d.look("Provision", pv.Name+" "+name, err)
		}
	}
}

func (d *secretCheck) attach(spec *volume.Spec, name string) {
	d.e.t.Helper()
	if yes, err := d.e.registry.IsAttachable(spec); err != nil || !yes {
		d.look("CanAttach", "", err)
		return
	}
	d.e.later(func() { d.look("Detach", "", d.e.detacher().Detach(d.e.afterwards(), name, d.e.config.NodeName)) })
	path, err := d.e.attacher(spec).Attach(d.e.ctx(), spec, d.e.config.NodeName)
	d.look("Attach", path, err)
	path, err = d.e.attacher(spec).WaitForAttach(d.e.ctx(), spec, path, newPod())
	d.look("WaitForAttach", path, err)
}

func (d *secretCheck) stage(spec *volume.Spec) {
	d.e.t.Helper()
	if yes, err := d.e.registry.IsDeviceMountable(spec); err != nil || !yes {
		d.look("CanDeviceMount", "", err)
		return
	}
	path, err := d.e.deviceMounter(spec).GetDeviceMountPath(spec)
	d.look("GetDeviceMountPath", path, err)
	if err != nil {
		return
	}
	d.e.later(func() { d.look("UnmountDevice", "", d.e.deviceUnmounter().UnmountDevice(d.e.afterwards(), path)) })
	device := ""
	if yes, _ := d.e.registry.IsAttachable(spec); yes {
		device, _ = d.e.attacher(spec).WaitForAttach(d.e.ctx(), spec, "", newPod())
	}
	d.look("MountDevice", "", d.e.deviceMounter(spec).MountDevice(d.e.ctx(), spec, device, path, volume.DeviceMounterArgs{}))
}

func (d *secretCheck) setUp(spec *volume.Spec) {
	d.e.t.Helper()
	pod := newPod()
	mounter, err := d.e.plugin.NewMounter(spec, pod)
	d.look("NewMounter", "", err)
	if err != nil {
		return
	}
	d.look("GetPath", mounter.GetPath(), nil)
	d.e.later(func() {
		unmounter, err := d.e.plugin.NewUnmounter(spec.Name(), pod.UID)
		if err == nil {
			err = unmounter.TearDown(d.e.afterwards())
		}
		d.look("TearDown", "", err)
	})
	d.look("SetUp", "", mounter.SetUp(d.e.ctx(), volume.MounterArgs{PodUID: string(pod.UID)}))
	d.look("a cancelled SetUp", "", mounter.SetUp(d.e.ended(), volume.MounterArgs{PodUID: string(pod.UID)}))
}

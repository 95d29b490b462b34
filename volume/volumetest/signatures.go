package volumetest

import (
	"fmt"
	"reflect"

	"github.com/volumekit/volumekit/volume"
)

// optional are the interfaces that a plugin may have beside VolumePlugin.
var optional = []reflect.Type{
	reflect.TypeFor[volume.PersistentVolumePlugin](), reflect.TypeFor[volume.RecyclableVolumePlugin](),
	reflect.TypeFor[volume.DeletableVolumePlugin](), reflect.TypeFor[volume.ProvisionableVolumePlugin](),
	reflect.TypeFor[volume.CloneableVolumePlugin](), reflect.TypeFor[volume.AttachableVolumePlugin](),
	reflect.TypeFor[volume.FencingVolumePlugin](), reflect.TypeFor[volume.AttachmentLister](),
	reflect.TypeFor[volume.DeviceMountableVolumePlugin](), reflect.TypeFor[volume.ExpandableVolumePlugin](),
	reflect.TypeFor[volume.NodeExpandableVolumePlugin](), reflect.TypeFor[volume.ModifiableVolumePlugin](),
	reflect.TypeFor[volume.VolumePluginWithAttachLimits](),
	reflect.TypeFor[volume.BlockVolumePlugin](), reflect.TypeFor[volume.RemountableVolumePlugin](),
	reflect.TypeFor[volume.MountOptionVolumePlugin](), reflect.TypeFor[volume.MountingVolumePlugin](),
	reflect.TypeFor[volume.SELinuxVolumePlugin](), reflect.TypeFor[volume.ReconstructableVolumePlugin](),
	reflect.TypeFor[volume.BulkVolumeVerifier](), reflect.TypeFor[volume.Explainer](),
	reflect.TypeFor[volume.SpecKindDeclarer](), reflect.TypeFor[volume.PublicKeyDeclarer](),
	reflect.TypeFor[volume.CapabilityLimiter](), reflect.TypeFor[volume.SnapshottableVolumePlugin](),
	reflect.TypeFor[volume.SnapshotLister](), reflect.TypeFor[volume.GroupSnapshottableVolumePlugin](),
	reflect.TypeFor[volume.VolumePluginWithCapacity](),
}

// wrongSignatures names the methods of a plugin that have the name of one of an interface, and another signature, so that the
// plugin does not have the ability.
func wrongSignatures(plugin volume.VolumePlugin) []string {
	var wrong []string
	value, told := reflect.ValueOf(plugin), map[string]bool{}
	for _, wanted := range optional {
		for i := range wanted.NumMethod() {
			method := wanted.Method(i)
			has := value.MethodByName(method.Name)
			if !has.IsValid() || has.Type() == method.Type || told[method.Name] {
				continue
			}
			told[method.Name] = true
			wrong = append(wrong, fmt.Sprintf("%s exists with another signature: it is %s, and %s has %s", method.Name, has.Type(), wanted, method.Type))
		}
	}
	return wrong
}

package volumetest

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// Config says which plugin is tested, and what is special about it. NewPlugin is required, and NewSpec for a plugin that
// cannot provision. The zero value of every other field suits a plugin that mounts storage at the pod's path on the
// machine that the test runs on.
type Config struct {
	// NewPlugin returns a new value of the plugin, not yet initialised. It is called several times in one case: the
	// second value is the plugin after its process was killed and started again, so that it must find the same storage
	// and the same mounter as the first. Register clean-up with t.Cleanup.
	NewPlugin func(t testing.TB) volume.VolumePlugin
	// NewSpec returns a spec of the plugin for storage that exists and that no earlier call has returned: each case gets
	// one of its own. Nil means that the suite provisions a volume for each case.
	NewSpec func(t testing.TB) *volume.Spec
	// NewReadOnlySpec returns what NewSpec returns, but read-only. Nil means that the suite asks for read-only itself: at
	// the reference to a PersistentVolume, or in the csi, flexVolume or nfs source of an inline volume; the case is
	// skipped where the source has no such field.
	NewReadOnlySpec func(t testing.TB) *volume.Spec
	// NewBlockSpec returns what NewSpec returns, but for a block device. Nil means that the suite asks for volumeMode Block
	// itself. It may return nil, where a plugin with CapBlock has no device: the cases for block devices are then skipped.
	NewBlockSpec func(t testing.TB) *volume.Spec
	// NewVolumeOptions returns what is to be provisioned, with a PVName that no earlier call has returned: class
	// parameters, claim. Nil asks for 64 MiB, ReadWriteOnce, without parameters.
	NewVolumeOptions func(t testing.TB) volume.VolumeOptions
	// Content is for a plugin whose content is its own, such as that of config maps: it returns what the volume of spec must
	// hold for the pod after SetUp, by the names of the files in the volume. The suite then reads these files where it would
	// write one and read it back. The content of two specs should not be the same. Nil means that the suite writes.
	Content func(spec *volume.Spec, pod *v1.Pod) map[string]string
	// ChangeContent makes what Content returns for spec another one. Nil means that it never changes.
	ChangeContent func(t testing.TB, spec *volume.Spec)
	// World is where the plugin's effects are looked at; nil means [KernelWorld].
	World World
	// RootDir is the absolute directory under which the plugin works; each case gets a directory of its own in it.
	// Empty means a temporary directory of the test.
	RootDir string
	// NodeName is the node that volumes are attached to; empty means "node-1".
	NodeName types.NodeName
	// Require are the capabilities that the plugin must have. One that is absent fails; one that is absent and not
	// listed skips its group with that reason.
	Require volume.Capabilities
	// PlainDirectory says that SetUp makes no mount at the pod's path: the path is a directory, or lies outside of the
	// root, as with a host path. By default a mount is expected there.
	PlainDirectory bool
	// FSGroup says that SetUp gives the content to the group that volume.MounterArgs names, as volume/ownership does it.
	FSGroup bool
	// Shared says that two pods that set one spec up see the same files. By default each sees its own, or it is not
	// known.
	Shared bool
	// Lifetime says how long what a pod writes lasts. It must be set where the specs are PersistentVolumes.
	Lifetime Lifetime
	// Parameters are those of the class of what the suite provisions. They are not used where NewVolumeOptions is set.
	Parameters map[string]string
	// MutableParameters are two sets of parameters that ModifyVolume takes, of which each gives an attribute another value. They
	// must be set for a plugin with volume.CapModify.
	MutableParameters [2]map[string]string
	// Attributes returns the attributes that the storage of spec has, by the keys of the parameters, read from
	// the storage itself and not from the plugin. The suite looks only at those that it has set. Nil means that they cannot be
	// read: the cases then only look at errors and content.
	Attributes func(t testing.TB, spec *volume.Spec) map[string]string
	// OwnCapacity says that nothing but the plugin changes what GetCapacity says is available, as on a filesystem of its
	// own. By default the suite does not compare two answers.
	OwnCapacity bool

	// patience stands in for leakPatience in tests of the suite that expect a leak; zero means leakPatience.
	patience time.Duration
}

package volumetest

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// Config describes the plugin under test. NewPlugin is required. NewSpec is required for a plugin that cannot provision. The zero value
// of every other field is for a plugin that mounts storage at the pod's path on this machine.
type Config struct {
	// NewPlugin returns a new value of the plugin, before Init. A case calls it several times. The second value stands for the plugin
	// after its process was killed and started again. So both must use the same storage and the same mounter. Register clean-up with
	// t.Cleanup.
	NewPlugin func(t testing.TB) volume.VolumePlugin
	// NewSpec returns a spec for existing storage. Each call must return other storage: each case has its own. Nil means that the
	// suite provisions a volume for each case.
	NewSpec func(t testing.TB) *volume.Spec
	// NewReadOnlySpec is NewSpec for a read-only spec. Nil means that the suite sets read-only itself: in the reference to a
	// PersistentVolume, or in the csi, flexVolume or nfs source of an inline volume. If the source has no such field, the suite skips
	// the case.
	NewReadOnlySpec func(t testing.TB) *volume.Spec
	// NewBlockSpec is NewSpec for a block device. Nil means that the suite sets volumeMode Block itself. NewBlockSpec may return nil
	// if there is no device for a plugin with CapBlock: the suite then skips the cases for block devices.
	NewBlockSpec func(t testing.TB) *volume.Spec
	// NewVolumeOptions returns the options of a new volume: its class parameters and its claim. Each call must return another
	// PVName. Nil means 64 MiB, ReadWriteOnce, without parameters.
	NewVolumeOptions func(t testing.TB) volume.VolumeOptions
	// Content is for a plugin that publishes its own content, such as that of config maps. It returns the files that the volume must
	// have for the pod after SetUp, by name. The suite then reads these files instead of writing a file and reading it back. Two specs
	// should have different content. Nil means that the suite writes.
	Content func(spec *volume.Spec, pod *v1.Pod) map[string]string
	// ChangeContent changes the content that Content returns for spec. Nil means that it never changes.
	ChangeContent func(t testing.TB, spec *volume.Spec)
	// World has the mount table and the files in which the suite checks the plugin's effects; nil means [KernelWorld].
	World World
	// RootDir is an absolute directory. In it each case has its own root directory of the node. Empty means a temporary directory of
	// the test.
	RootDir string
	// NodeName is the node that volumes are attached to; empty means "node-1".
	NodeName types.NodeName
	// Require are the capabilities that the plugin must have: without one of them the suite fails. For any other capability that the
	// plugin lacks, the suite skips the group of cases, and names the capability.
	Require volume.Capabilities
	// PlainDirectory says that SetUp makes no mount at the pod's path: the path is a directory, or outside of the root like a host
	// path. By default the suite expects a mount.
	PlainDirectory bool
	// FSGroup says that SetUp changes the group of the content to that of volume.MounterArgs, like volume/ownership.
	FSGroup bool
	// Shared says that two pods with the same spec see the same files. By default each pod may have its own files.
	Shared bool
	// Lifetime says how long files of a pod last. It is required if the specs are PersistentVolumes.
	Lifetime Lifetime
	// Parameters are the class parameters of the volumes that the suite provisions. They are not used if NewVolumeOptions is set.
	Parameters map[string]string
	// MutableParameters are two sets of parameters for ModifyVolume. They give an attribute different values. They are required for a
	// plugin with volume.CapModify.
	MutableParameters [2]map[string]string
	// Attributes returns the attributes of the storage of spec, by the keys of the parameters. It reads them from the storage itself
	// and not from the plugin. The suite checks only attributes that it has set. Nil means that they cannot be read: the cases then
	// check only errors and content.
	Attributes func(t testing.TB, spec *volume.Spec) map[string]string
	// OwnCapacity says that only the plugin changes the capacity that GetCapacity returns, for example because it has a filesystem of
	// its own. By default the suite does not compare two results.
	OwnCapacity bool

	// leakTimeout replaces defaultLeakTimeout in tests of the suite that expect a leak; zero means defaultLeakTimeout.
	leakTimeout time.Duration
}

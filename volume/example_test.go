package volume_test

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// The class of an error says what is believed afterwards, through any wrapping.
func ExampleUncertain() {
	answer := errors.New("the server did not answer")
	err := fmt.Errorf("mounting nfs.example.com:/export: %w", volume.Uncertain(answer))

	fmt.Println(err)
	fmt.Println(errors.Is(err, volume.ErrUncertain), errors.Is(err, answer))

	// Output:
	// mounting nfs.example.com:/export: the server did not answer
	// true true
}

// A plugin without a field of its own in the API is named by the csi source.
func ExampleSpec_Driver() {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{
		Driver:           "loop-block.volumekit.io",
		VolumeHandle:     "disk-9",
		VolumeAttributes: map[string]string{"preallocate": "true"},
	}
	driver, ok := volume.NewSpecFromPersistentVolume(pv, false).Driver()
	fmt.Println(ok, driver.PluginName, driver.Handle, driver.Parameters["preallocate"])

	// Output: true volumekit.io/loop-block disk-9 true
}

// The options of the PersistentVolume come first and those of the plugin last, so that the plugin's win.
func ExampleMountOptionFromSpec() {
	pv := &v1.PersistentVolume{}
	pv.Spec.MountOptions = []string{"vers=4.2", "rw", "hard"}
	spec := volume.NewSpecFromPersistentVolume(pv, true)
	fmt.Println(volume.MountOptionFromSpec(spec, "ro"))

	// Output: [vers=4.2 rw hard ro]
}

// A unique name can be taken apart again, because a plugin's name has exactly one slash.
func ExampleSplitUniqueName() {
	unique := volume.GetUniqueVolumeName("kubernetes.io/nfs", "nfs.example.com/export")
	plugin, name, err := volume.SplitUniqueName(unique)
	fmt.Println(plugin, name, err)
	fmt.Println(volume.EscapeQualifiedName(plugin))

	// Output:
	// kubernetes.io/nfs nfs.example.com/export <nil>
	// kubernetes.io~nfs
}

package loopblock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// deviceAttributes are what the kernel says of the device of an image; nil when it has none.
func deviceAttributes(t testing.TB, image string) map[string]string {
	t.Helper()
	device, err := loop.New(loop.Options{}).Find(t.Context(), image)
	if errors.Is(err, loop.ErrNotAttached) {
		return nil
	}
	require.NoError(t, err)
	text, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/queue/read_ahead_kb", device.Number))
	require.NoError(t, err)
	return map[string]string{
		loopblock.ParameterDirectIO: strconv.FormatBool(device.DirectIO), loopblock.ParameterReadAhead: strings.TrimSpace(string(text)) + "Ki",
	}
}

// attributesIn returns what looks at the attributes of a volume: at its device if it has one, else at its file.
func attributesIn(images string) func(testing.TB, *volume.Spec) map[string]string {
	return func(t testing.TB, spec *volume.Spec) map[string]string {
		t.Helper()
		driver, _ := spec.Driver()
		if has := deviceAttributes(t, filepath.Join(images, driver.Handle+".img")); has != nil {
			ahead, has := resource.MustParse(has[loopblock.ParameterReadAhead]), has
			has[loopblock.ParameterReadAhead] = ahead.String()
			return has
		}
		text, err := os.ReadFile(filepath.Join(images, driver.Handle+".attributes"))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		require.NoError(t, err)
		var has map[string]string
		require.NoError(t, json.Unmarshal(text, &has))
		return has
	}
}

func (n *node) modify(spec *volume.Spec, parameters map[string]string) {
	n.t.Helper()
	require.NoError(n.t, n.plugin.ModifyVolume(n.t.Context(), spec, parameters))
}

// A volume is modified while a pod writes to it, and has its attributes again when it comes back.
func TestAVolumeIsModifiedWhileAPodHasIt(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.stage(spec)
	path := n.setUp(spec, "pod")
	file, err := os.OpenFile(filepath.Join(path, "log"), os.O_CREATE|os.O_WRONLY|os.O_SYNC, 0o600)
	require.NoError(t, err)
	defer file.Close()
	want := ""
	for i, direct := range []string{"true", "false", "true"} {
		ahead := strconv.Itoa(256<<i) + "Ki"
		n.modify(spec, map[string]string{"directIO": direct, "readAhead": ahead})
		assert.Equal(t, map[string]string{"directIO": direct, "readAhead": ahead}, deviceAttributes(t, n.image("pv")))
		_, err := fmt.Fprintln(file, direct)
		require.NoError(t, err)
		want += direct + "\n"
	}
	require.NoError(t, file.Close())
	assertContent(t, filepath.Join(path, "log"), want)
	n.tearDown(spec, "pod")
	n.release(spec)
	require.Nil(t, deviceAttributes(t, n.image("pv")))

	n.plugin = n.pluginOver(n.mounter)
	n.stage(spec)
	assertContent(t, filepath.Join(n.setUp(spec, "pod"), "log"), want)
	assert.Equal(t, map[string]string{"directIO": "true", "readAhead": "1024Ki"}, deviceAttributes(t, n.image("pv")))
	n.tearDown(spec, "pod")
	n.release(spec)
}

// What cannot be has no effect, on the file or on the device.
func TestAttributesThatCannotBeChangeNothing(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.attach(spec)
	n.modify(spec, map[string]string{"readAhead": "512Ki"})
	for _, wrong := range []map[string]string{
		{"readAhead": "1Mi", "colour": "red"}, {"readAhead": "1000"}, {"readAhead": "-4Ki"}, {"readAhead": "128Mi"}, {"readAhead": "much"},
		{"directIO": "maybe"}, {"discard": "false"},
	} {
		assert.ErrorIs(t, n.plugin.ModifyVolume(t.Context(), spec, wrong), volume.ErrInfeasible, "%v", wrong)
	}
	assert.Equal(t, map[string]string{"directIO": "false", "readAhead": "512Ki"}, deviceAttributes(t, n.image("pv")))
	text, err := os.ReadFile(filepath.Join(n.images, "pv.attributes"))
	require.NoError(t, err)
	assert.JSONEq(t, `{"readAhead": "512Ki"}`, string(text))
}

// A volume that is deleted leaves no attributes, for a new one of its name or for the next one with its device.
func TestAttributesGoWithTheirVolume(t *testing.T) {
	n := newNode(t)
	options := claimOf("pv")
	options.MutableParameters = map[string]string{"readAhead": "2Mi"}
	spec, err := n.tryProvision(t.Context(), options)
	require.NoError(t, err)
	n.attach(spec)
	require.Equal(t, "2048Ki", deviceAttributes(t, n.image("pv"))["readAhead"])
	require.NoError(t, n.tryDetach(t.Context(), spec))
	left := filepath.Join(n.images, "pv.attributes.new")
	require.NoError(t, os.WriteFile(left, []byte("what a killed process has left"), 0o600))
	require.NoError(t, n.tryDelete(spec))
	assert.NoFileExists(t, filepath.Join(n.images, "pv.attributes"))
	assert.NoFileExists(t, left)
	again := n.provision("pv")
	n.attach(again)
	assert.NotEqual(t, "2048Ki", deviceAttributes(t, n.image("pv"))["readAhead"])
}

// A device that stays since it is mounted keeps its attributes.
func TestADetachThatIsRefusedLeavesTheAttributes(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.stage(spec)
	n.modify(spec, map[string]string{"readAhead": "2Mi"})
	require.ErrorIs(t, n.tryDetach(t.Context(), spec), volume.ErrInUse)
	assert.Equal(t, "2048Ki", deviceAttributes(t, n.image("pv"))["readAhead"])
	n.release(spec)
}

// A file that is damaged is told of, and neither believed nor replaced.
func TestAttributesThatCannotBeReadAreToldOf(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	name := filepath.Join(n.images, "pv.attributes")
	require.NoError(t, os.WriteFile(name, []byte(`{"readAhead": `), 0o600))
	require.ErrorContains(t, n.plugin.ModifyVolume(t.Context(), spec, map[string]string{"readAhead": "1Mi"}), name)
	_, err := n.attacher().Attach(t.Context(), spec, nodeName)
	require.ErrorContains(t, err, name)
	require.NoError(t, n.tryDetach(t.Context(), spec), "it is detached all the same")
	require.NoError(t, n.tryDelete(spec))
}

// A device cannot do direct I/O on a disk with larger sectors than its own. A modification says so and changes nothing; a volume
// whose attributes ask for it already is attached without.
func TestDirectIOThatTheDeviceCannotDo(t *testing.T) {
	n := newNode(t)
	disk := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	require.NoError(t, os.Truncate(disk, 256<<20))
	loops := loop.New(loop.Options{})
	device, err := loops.Attach(t.Context(), disk, loop.AttachOptions{SectorSize: 4096})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, loops.Detach(context.WithoutCancel(t.Context()), device)) })
	require.NoError(t, format.Make(t.Context(), device.Path, format.MakeOptions{FSType: "ext4"}))
	require.NoError(t, os.MkdirAll(n.images, 0o700))
	require.NoError(t, unix.Mount(device.Path, n.images, "ext4", 0, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(n.images, 0)) })

	spec := n.provision("pv")
	n.attach(spec)
	n.modify(spec, map[string]string{"readAhead": "512Ki"})
	err = n.plugin.ModifyVolume(t.Context(), spec, map[string]string{"directIO": "true", "readAhead": "1Mi"})
	require.ErrorIs(t, err, volume.ErrInfeasible)
	require.NotErrorIs(t, err, volume.ErrUncertain)
	name := filepath.Join(n.images, "pv.attributes")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.JSONEq(t, `{"readAhead": "512Ki"}`, string(text))
	want := map[string]string{"directIO": "false", "readAhead": "512Ki"}
	assert.Equal(t, want, deviceAttributes(t, n.image("pv")))

	require.NoError(t, n.tryDetach(t.Context(), spec))
	n.modify(spec, map[string]string{"directIO": "true"}) // Only the device knows better.
	n.attach(spec)
	assert.Equal(t, want, deviceAttributes(t, n.image("pv")))
	require.NoError(t, n.tryDetach(t.Context(), spec))
	require.NoError(t, n.tryDelete(spec))
}

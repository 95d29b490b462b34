package fake

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// snapshotWorld is a plugin with volumes of 1 Ki that are staged.
func snapshotWorld(t *testing.T, options PluginOptions, names ...string) (*Plugin, *Mounter, []*volume.Spec) {
	t.Helper()
	world := NewMounter(MounterOptions{})
	options.Mounter = world
	plugin := initialised(t, options)
	var specs []*volume.Spec
	for _, name := range names {
		require.NoError(t, plugin.Backend().Create(name, 1<<10))
		spec := persistent(name)
		attacher := attacherOf(t, plugin)
		stage, err := attacher.GetDeviceMountPath(spec)
		require.NoError(t, err)
		require.NoError(t, attacher.MountDevice(t.Context(), spec, "", stage, volume.DeviceMounterArgs{}))
		specs = append(specs, spec)
	}
	return plugin, world, specs
}

func stageOf(t *testing.T, plugin *Plugin, name string) string {
	t.Helper()
	stage, err := plugin.stagePath(name)
	require.NoError(t, err)
	return stage
}

func restoreOptions(name, size string, s volume.Snapshot) volume.VolumeOptions {
	return volume.VolumeOptions{PVName: name, Snapshot: &s, PVC: &v1.PersistentVolumeClaim{
		Spec: v1.PersistentVolumeClaimSpec{Resources: v1.VolumeResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
		}},
	}}
}

func tryRestore(ctx context.Context, plugin *Plugin, name, size string, s volume.Snapshot) error {
	provisioner, err := plugin.NewProvisioner(restoreOptions(name, size, s))
	if err != nil {
		return err
	}
	_, err = provisioner.Provision(ctx, nil, nil)
	return err
}

func TestSnapshotIsATreeOfItsMoment(t *testing.T) {
	plugin, world, specs := snapshotWorld(t, PluginOptions{}, "data")
	stage := stageOf(t, plugin, "data")
	require.NoError(t, world.MkdirAll(stage+"/dir", 0o755))
	require.NoError(t, world.WriteFile(stage+"/dir/file", []byte("then"), 0o644))
	made, err := plugin.CreateSnapshot(t.Context(), volume.SnapshotOptions{Name: "s", Source: specs[0]})
	require.NoError(t, err)
	assert.Equal(t, int64(1<<10), made.RestoreSize)
	require.NoError(t, world.WriteFile(stage+"/dir/file", []byte("later"), 0o644))

	require.NoError(t, tryRestore(t.Context(), plugin, "restored", "2Ki", made))
	restored := persistent("restored")
	target := stageOf(t, plugin, "restored")
	require.NoError(t, attacherOf(t, plugin).MountDevice(t.Context(), restored, "", target, volume.DeviceMounterArgs{}))
	data, err := world.ReadFile(target + "/dir/file")
	require.NoError(t, err)
	assert.Equal(t, "then", string(data))
	size, _ := plugin.Backend().Size("restored")
	assert.Equal(t, int64(2<<10), size)
	assert.Equal(t, []volume.Snapshot{made}, plugin.Backend().Snapshots())
}

func TestASnapshotThatIsNotReadyIsNotRestored(t *testing.T) {
	plugin, _, specs := snapshotWorld(t, PluginOptions{UnreadySnapshots: true}, "data")
	made, err := plugin.CreateSnapshot(t.Context(), volume.SnapshotOptions{Name: "s", Source: specs[0]})
	require.NoError(t, err)
	assert.False(t, made.ReadyToUse)
	require.ErrorIs(t, tryRestore(t.Context(), plugin, "restored", "1Ki", made), volume.ErrTransient)
	require.NoError(t, plugin.Backend().MakeSnapshotReady("s"))
	made, err = plugin.GetSnapshot(t.Context(), "s")
	require.NoError(t, err)
	assert.True(t, made.ReadyToUse)
	require.NoError(t, tryRestore(t.Context(), plugin, "restored", "1Ki", made))
	require.ErrorIs(t, plugin.Backend().MakeSnapshotReady("none"), volume.ErrNotFound)
}

// A claim that is deleted while its volume is uncertain is provisioned once more, when the snapshot is gone.
func TestAVolumeThatWasRestoredIsFoundWithoutItsSnapshot(t *testing.T) {
	plugin, _, specs := snapshotWorld(t, PluginOptions{}, "data")
	made, err := plugin.CreateSnapshot(t.Context(), volume.SnapshotOptions{Name: "s", Source: specs[0]})
	require.NoError(t, err)
	options := restoreOptions("restored", "2Ki", made)
	group := "snapshot.storage.k8s.io"
	options.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"}
	options.Snapshot = nil
	_, err = plugin.NewProvisioner(options)
	require.ErrorIs(t, err, volume.ErrInfeasible, "nothing was made")
	require.NoError(t, tryRestore(t.Context(), plugin, "restored", "2Ki", made))
	require.NoError(t, plugin.DeleteSnapshot(t.Context(), "s"))
	provisioner, err := plugin.NewProvisioner(options)
	require.NoError(t, err)
	pv, err := provisioner.Provision(t.Context(), nil, nil)
	require.NoError(t, err)
	assert.Equal(t, "restored", pv.Name)
}

func TestASnapshotOfAGroupIsDeletedWithIt(t *testing.T) {
	plugin, _, specs := snapshotWorld(t, PluginOptions{UnreadySnapshots: true}, "one", "two")
	group, err := plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "g", Sources: specs})
	require.NoError(t, err)
	require.Len(t, group.Snapshots, 2)
	assert.False(t, group.ReadyToUse)
	require.ErrorIs(t, plugin.DeleteSnapshot(t.Context(), group.Snapshots[0].Handle), volume.ErrInfeasible)
	for _, s := range group.Snapshots {
		require.NoError(t, plugin.Backend().MakeSnapshotReady(s.Handle))
	}
	group, err = plugin.GetGroupSnapshot(t.Context(), "g", nil)
	require.NoError(t, err)
	assert.True(t, group.ReadyToUse)
	_, err = plugin.CreateSnapshot(t.Context(), volume.SnapshotOptions{Name: "g", Source: specs[0]})
	var conflict *volume.SnapshotSourceError
	require.ErrorAs(t, err, &conflict, "a group has the name")
	_, err = plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "h", Sources: append(specs, specs[0])})
	require.ErrorIs(t, err, volume.ErrInvalid, "a source twice")
	require.NoError(t, plugin.DeleteGroupSnapshot(t.Context(), "g", nil))
	assert.Empty(t, plugin.Backend().Snapshots())
}

func TestEachSnapshotCallCanFail(t *testing.T) {
	planned := errors.New("planned")
	plugin, _, specs := snapshotWorld(t, PluginOptions{}, "data")
	one, group := volume.SnapshotOptions{Name: "s", Source: specs[0]}, volume.GroupSnapshotOptions{Name: "g", Sources: specs}
	for method, call := range map[Method]func() error{
		MethodCreateSnapshot: func() error { _, err := plugin.CreateSnapshot(t.Context(), one); return err },
		MethodGetSnapshot:    func() error { _, err := plugin.GetSnapshot(t.Context(), "s"); return err },
		MethodDeleteSnapshot: func() error { return plugin.DeleteSnapshot(t.Context(), "s") },
		MethodListSnapshots:  func() error { _, err := plugin.ListSnapshots(t.Context()); return err },
		MethodCreateGroupSnapshot: func() error {
			_, err := plugin.CreateGroupSnapshot(t.Context(), group)
			return err
		},
		MethodGetGroupSnapshot:    func() error { _, err := plugin.GetGroupSnapshot(t.Context(), "g", nil); return err },
		MethodDeleteGroupSnapshot: func() error { return plugin.DeleteGroupSnapshot(t.Context(), "g", nil) },
	} {
		plugin.Inject(method, Fail(planned))
		require.ErrorIs(t, call(), planned, method)
		calls := plugin.Calls()
		assert.Equal(t, method, calls[len(calls)-1].Method)
	}
	assert.Empty(t, plugin.Backend().Snapshots(), "a call that fails does nothing")
	plugin.Inject(MethodCreateSnapshot, FailAfter(planned))
	_, err := plugin.CreateSnapshot(t.Context(), one)
	require.ErrorIs(t, err, planned)
	assert.Len(t, plugin.Backend().Snapshots(), 1)
}

func TestOverTheMachineThereAreNoGroups(t *testing.T) {
	plugin := NewPlugin(PluginOptions{Mounter: mount.New(mount.Options{})})
	assert.Equal(t, volume.AllCapabilities&^volume.CapGroupSnapshot, volume.CapabilitiesOf(plugin))
}

package csiserver_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/volume"
)

// trySnapshot makes a snapshot of a volume.
func (c *caller) trySnapshot(ctx context.Context, name, source string) (*csi.Snapshot, error) {
	response, err := c.control.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source})
	return response.GetSnapshot(), err
}

func (c *caller) snapshot(t *testing.T, name, source string) *csi.Snapshot {
	t.Helper()
	made, err := c.trySnapshot(t.Context(), name, source)
	require.NoError(t, err)
	return made
}

func (c *caller) deleteSnapshot(ctx context.Context, id string) error {
	_, err := c.control.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

func (c *caller) getSnapshot(ctx context.Context, id string) (*csi.Snapshot, error) {
	response, err := c.control.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id})
	return response.GetSnapshot(), err
}

// tryRestore makes a volume of a snapshot.
func (c *caller) tryRestore(ctx context.Context, name, snapshot string, size *csi.CapacityRange) (*csi.Volume, error) {
	response, err := c.control.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{c.capability}, CapacityRange: size,
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
		}},
	})
	return response.GetVolume(), err
}

// group are the calls for groups.
func (c *caller) group() csi.GroupControllerClient { return csi.NewGroupControllerClient(c.connection) }

func (c *caller) tryGroup(ctx context.Context, name string, sources ...string) (*csi.VolumeGroupSnapshot, error) {
	response, err := c.group().CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: sources})
	return response.GetGroupSnapshot(), err
}

// withVolumes serves the fake with some volumes.
func withVolumes(t *testing.T, options csiserver.Options, names ...string) (*caller, *fake.Plugin) {
	t.Helper()
	c, plugin := faked(t, options)
	for _, name := range names {
		require.NoError(t, c.create(t.Context(), name))
	}
	return c, plugin
}

// A snapshot is made once for each name, also if the first answer was lost, and is of the volume that was asked for.
func TestASnapshotIsMadeOnceForEachName(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data", "other")
	plugin.Inject(fake.MethodCreateSnapshot, fake.FailAfter(volume.Uncertain(errors.New("the answer was lost"))))
	_, err := c.trySnapshot(t.Context(), "snap", "data")
	codeIs(t, codes.Unavailable, err)
	made := c.snapshot(t, "snap", "data")
	assert.Equal(t, "data", made.GetSourceVolumeId())
	assert.Equal(t, 64*mebibyte, made.GetSizeBytes())
	assert.True(t, made.GetReadyToUse())
	assert.Equal(t, made.String(), c.snapshot(t, "snap", "data").String())
	_, err = c.trySnapshot(t.Context(), "snap", "other")
	codeIs(t, codes.AlreadyExists, err)
	assert.Len(t, plugin.Backend().Snapshots(), 1)

	long := strings.Repeat("long name/", 12)
	first := c.snapshot(t, long, "data")
	assert.Equal(t, first.String(), c.snapshot(t, long, "data").String())
	assert.Len(t, plugin.Backend().Snapshots(), 2)
	_, err = c.trySnapshot(t.Context(), "none", "missing")
	codeIs(t, codes.NotFound, err)
}

// A server that is stopped and started goes on where it was, also when the source is gone. In the end no record is left.
func TestSnapshotsOutliveTheirServer(t *testing.T) {
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	c := newCaller(t, dir, mounted(writer))
	again := func() {
		c.stop()
		c = newCaller(t, dir, c.capability)
	}
	require.NoError(t, c.create(t.Context(), "data"))
	first := c.snapshot(t, "snap", "data")
	group, err := c.tryGroup(t.Context(), "group", "data")
	require.NoError(t, err)
	again()
	c.volume = &csi.Volume{VolumeId: "data"}
	require.NoError(t, c.delete(t.Context()))
	for range 2 {
		assert.Equal(t, first.String(), c.snapshot(t, "snap", "data").String())
		found, err := c.getSnapshot(t.Context(), first.GetSnapshotId())
		require.NoError(t, err)
		assert.Equal(t, first.String(), found.String())
		member, err := c.getSnapshot(t.Context(), group.GetSnapshots()[0].GetSnapshotId())
		require.NoError(t, err)
		assert.Equal(t, "data", member.GetSourceVolumeId(), "a snapshot of a group")
		same, err := c.tryGroup(t.Context(), "group", "data")
		require.NoError(t, err)
		assert.Equal(t, group.String(), same.String())
		again()
	}
	for range 2 {
		require.NoError(t, c.deleteSnapshot(t.Context(), first.GetSnapshotId()))
		_, err = c.group().DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId()})
		require.NoError(t, err)
		again()
	}
	c.stop()
	assertNothingLeft(t, c.options)
}

// A kill between the call of the plugin and its record: the source may be deleted before the call is repeated.
func TestASnapshotOutlivesItsSource(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	plugin.Inject(fake.MethodCreateSnapshot, fake.FailAfter(volume.Uncertain(errors.New("the answer was lost"))))
	_, err := c.trySnapshot(t.Context(), "snap", "data")
	codeIs(t, codes.Unavailable, err)
	require.NoError(t, c.delete(t.Context()))
	assert.Equal(t, "data", c.snapshot(t, "snap", "data").GetSourceVolumeId())
}

// A snapshot that is gone is not made again under its name, which would be of another moment, until the caller has deleted it.
func TestASnapshotThatIsGoneIsNotMadeAgain(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	made := c.snapshot(t, "snap", "data")
	require.NoError(t, plugin.DeleteSnapshot(t.Context(), made.GetSnapshotId()))
	_, err := c.trySnapshot(t.Context(), "snap", "data")
	codeIs(t, codes.NotFound, err)
	require.NoError(t, c.deleteSnapshot(t.Context(), made.GetSnapshotId()))
	c.snapshot(t, "snap", "data")
}

// An uncertain deletion is finished before another snapshot of the name is made.
func TestADeletionIsFinishedBeforeTheNameIsUsed(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data", "other")
	lost := volume.Uncertain(errors.New("the answer was lost"))
	plugin.Inject(fake.MethodDeleteSnapshot, fake.Fail(lost), fake.Fail(lost))
	plugin.Inject(fake.MethodDeleteGroupSnapshot, fake.Fail(lost), fake.Fail(lost))
	first := c.snapshot(t, "snap", "data")
	group, err := c.tryGroup(t.Context(), "group", "data")
	require.NoError(t, err)
	codeIs(t, codes.Unavailable, c.deleteSnapshot(t.Context(), first.GetSnapshotId()))
	_, err = c.group().DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId()})
	codeIs(t, codes.Unavailable, err)
	_, err = c.trySnapshot(t.Context(), "snap", "other")
	codeIs(t, codes.Unavailable, err)
	_, err = c.tryGroup(t.Context(), "group", "other")
	codeIs(t, codes.Unavailable, err)
	assert.Equal(t, "other", c.snapshot(t, "snap", "other").GetSourceVolumeId())
	group, err = c.tryGroup(t.Context(), "group", "other")
	require.NoError(t, err)
	assert.Equal(t, "other", group.GetSnapshots()[0].GetSourceVolumeId())
	assert.Len(t, plugin.Backend().Snapshots(), 2)
}

// One call at a time changes a snapshot; others are not held up.
func TestOneCallChangesASnapshotAtATime(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	held := func(method fake.Method, call func() error, refused ...func() error) {
		t.Helper()
		release := make(chan struct{})
		plugin.Inject(method, fake.HangUntil(release))
		first := make(chan error, 1)
		before := 0
		for _, called := range plugin.Calls() {
			if called.Method == method {
				before++
			}
		}
		go func() { first <- call() }()
		require.NoError(t, plugin.AwaitCalls(t.Context(), method, before+1))
		for _, second := range refused {
			codeIs(t, codes.Aborted, second())
		}
		close(release)
		require.NoError(t, <-first)
	}
	create := func() error { _, err := c.trySnapshot(t.Context(), "snap", "data"); return err }
	remove := func() error { return c.deleteSnapshot(t.Context(), "snap") }
	other := func() error { _, err := c.trySnapshot(t.Context(), "other", "data"); return err }
	held(fake.MethodCreateSnapshot, create, create)
	held(fake.MethodDeleteSnapshot, remove, remove, create)
	require.NoError(t, other())
	group := func() error { _, err := c.tryGroup(t.Context(), "group", "data"); return err }
	removeGroup := func() error {
		_, err := c.group().DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group"})
		return err
	}
	held(fake.MethodCreateGroupSnapshot, group, group)
	held(fake.MethodDeleteGroupSnapshot, removeGroup, removeGroup, group)
}

// A snapshot is not said to be ready before the plugin says so, and is then.
func TestASnapshotIsReadyWhenThePluginSaysSo(t *testing.T) {
	mounter := fake.NewMounter(fake.MounterOptions{})
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: mounter, UnreadySnapshots: true})
	options := optionsIn(t.TempDir())
	options.Mounter = mounter
	c := &caller{driver: serve(t, plugin, options), capability: mounted(writer), staging: "/staging"}
	require.NoError(t, c.create(t.Context(), "data"))
	assert.False(t, c.snapshot(t, "snap", "data").GetReadyToUse())
	assert.False(t, c.snapshot(t, "snap", "data").GetReadyToUse())
	require.NoError(t, plugin.Backend().MakeSnapshotReady("snap"))
	assert.True(t, c.snapshot(t, "snap", "data").GetReadyToUse())
	found, err := c.getSnapshot(t.Context(), "snap")
	require.NoError(t, err)
	assert.True(t, found.GetReadyToUse())
}

// Each way in which the plugin can fail is answered with a code that says whether the snapshot may be there.
func TestCodesOfSnapshots(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	for code, err := range map[codes.Code]error{
		codes.Unavailable:        volume.Uncertain(volume.ErrInvalid),
		codes.InvalidArgument:    volume.ErrInvalid,
		codes.FailedPrecondition: volume.ErrInUse,
		codes.ResourceExhausted:  syscall.ENOSPC,
		codes.NotFound:           volume.ErrNotFound,
		codes.AlreadyExists:      volume.Uncertain(&volume.SnapshotSourceError{Name: "snap"}),
		codes.Internal:           errors.New("cause"),
	} {
		plugin.Inject(fake.MethodCreateSnapshot, fake.Fail(fmt.Errorf("wrapped: %w", err)))
		_, err := c.trySnapshot(t.Context(), code.String(), "data") // The first attempt of that name.
		codeIs(t, code, err)
	}
	_, err := c.control.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: "data", Parameters: map[string]string{"colour": "blue"}})
	codeIs(t, codes.InvalidArgument, err)
	made := c.snapshot(t, "snap", "data")
	for code, err := range map[codes.Code]error{codes.InvalidArgument: volume.ErrInfeasible, codes.FailedPrecondition: volume.ErrInUse} {
		plugin.Inject(fake.MethodDeleteSnapshot, fake.Fail(err))
		codeIs(t, code, c.deleteSnapshot(t.Context(), made.GetSnapshotId()))
		c.snapshot(t, "snap", "data") // It was left whole.
	}
	plugin.Inject(fake.MethodDeleteSnapshot, fake.Fail(volume.Uncertain(volume.ErrInfeasible)))
	codeIs(t, codes.Unavailable, c.deleteSnapshot(t.Context(), made.GetSnapshotId()))
	require.NoError(t, c.deleteSnapshot(t.Context(), made.GetSnapshotId()))
	require.NoError(t, c.deleteSnapshot(t.Context(), made.GetSnapshotId()))
	_, err = c.getSnapshot(t.Context(), made.GetSnapshotId())
	codeIs(t, codes.NotFound, err)
	c.snapshot(t, "snap", "data")
}

// Of a snapshot that was provably not made no record is left, and that of one which may be there stays.
func TestASnapshotThatMayBeThereStays(t *testing.T) {
	options := optionsIn(t.TempDir())
	c, plugin := withVolumes(t, options, "data")
	count := func() (n int) {
		t.Helper()
		records, err := record.Peek(options.StateDir)
		require.NoError(t, err)
		for key := range records {
			if strings.HasPrefix(key, "snapshot/") || strings.HasPrefix(key, "group/") {
				n++
			}
		}
		return n
	}
	try := func(code codes.Code, err error) {
		plugin.Inject(fake.MethodCreateSnapshot, fake.Fail(err))
		plugin.Inject(fake.MethodCreateGroupSnapshot, fake.Fail(err))
		_, one := c.trySnapshot(t.Context(), "snap", "data")
		_, two := c.tryGroup(t.Context(), "group", "data")
		codeIs(t, code, one)
		codeIs(t, code, two)
	}
	try(codes.InvalidArgument, volume.ErrInvalid)
	assert.Zero(t, count(), "the first attempt was refused")
	try(codes.Unavailable, volume.Uncertain(errors.New("lost")))
	assert.Equal(t, 2, count())
	for _, err := range []error{errors.New("not now"), volume.ErrNotFound, volume.ErrInUse, syscall.ENOSPC} {
		try(codes.Unavailable, err)
		assert.Equal(t, 2, count(), "the second attempt says nothing of the first")
	}
	try(codes.OutOfRange, volume.ErrInfeasible)
	assert.Zero(t, count(), "there can never have been one")
}

// A snapshot whose deletion is uncertain is not whole again because a later deletion is refused: no call reports it.
func TestWhatMayBeDeletedIsNotWholeAgain(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "other", "data")
	made := c.snapshot(t, "snap", "data")
	group, err := c.tryGroup(t.Context(), "group", "data")
	require.NoError(t, err)
	deleteGroup := func() error {
		_, err := c.group().DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId()})
		return err
	}
	methods := []fake.Method{fake.MethodDelete, fake.MethodDeleteSnapshot, fake.MethodDeleteGroupSnapshot}
	for _, failure := range []error{volume.Uncertain(errors.New("lost")), volume.ErrInUse} {
		for _, method := range methods {
			plugin.Inject(method, fake.Fail(failure))
		}
		require.Error(t, c.delete(t.Context()))
		require.Error(t, c.deleteSnapshot(t.Context(), made.GetSnapshotId()))
		require.Error(t, deleteGroup())
	}
	codeIs(t, codes.Aborted, c.create(t.Context(), "data"))
	records, err := record.Peek(c.options.StateDir)
	require.NoError(t, err)
	for key, payload := range records {
		if key != "volume/other" {
			assert.Contains(t, payload, `"Step":"deleting"`, key)
		}
	}
}

// A plugin that panics while it makes something may have made it.
func TestWhatAPanicLeavesMayBeThere(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	for _, method := range []fake.Method{fake.MethodProvision, fake.MethodCreateSnapshot, fake.MethodCreateGroupSnapshot} {
		plugin.Inject(method, fake.PanicWith("out of order"))
	}
	codeIs(t, codes.Unavailable, c.create(t.Context(), "another"))
	_, err := c.trySnapshot(t.Context(), "snap", "data")
	codeIs(t, codes.Unavailable, err)
	_, err = c.tryGroup(t.Context(), "group", "data")
	codeIs(t, codes.Unavailable, err)
}

// Snapshots are listed in pages, by their volume and by their id, by whomever they were made.
func TestPagesOfSnapshots(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data", "other")
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		c.snapshot(t, name, "data")
	}
	c.snapshot(t, "f", "other")
	foreign, err := plugin.CreateSnapshot(t.Context(), volume.SnapshotOptions{Name: "g", Source: specOf(t, plugin, "other")})
	require.NoError(t, err)
	list := func(request *csi.ListSnapshotsRequest) (ids []string, next string) {
		t.Helper()
		response, err := c.control.ListSnapshots(t.Context(), request)
		require.NoError(t, err)
		for _, e := range response.GetEntries() {
			ids = append(ids, e.GetSnapshot().GetSourceVolumeId()+"/"+e.GetSnapshot().GetSnapshotId())
		}
		return ids, response.GetNextToken()
	}
	var all []string
	token := ""
	for {
		ids, next := list(&csi.ListSnapshotsRequest{MaxEntries: 2, StartingToken: token})
		all = append(all, ids...)
		if token = next; token == "" {
			break
		}
		if len(all) == 4 {
			require.NoError(t, c.deleteSnapshot(t.Context(), "d"), "the snapshot that the token is of")
		}
	}
	assert.Equal(t, []string{"data/a", "data/b", "data/c", "data/d", "data/e", "other/f", "other/g"}, all)
	ids, _ := list(&csi.ListSnapshotsRequest{SourceVolumeId: "other"})
	assert.Equal(t, []string{"other/f", "other/g"}, ids)
	ids, _ = list(&csi.ListSnapshotsRequest{SnapshotId: "b"})
	assert.Equal(t, []string{"data/b"}, ids)
	ids, _ = list(&csi.ListSnapshotsRequest{SnapshotId: "none"})
	assert.Empty(t, ids)
	_, err = c.control.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: "none"})
	codeIs(t, codes.Aborted, err)
	_, err = c.control.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: -1})
	codeIs(t, codes.InvalidArgument, err)

	require.NoError(t, c.deleteSnapshot(t.Context(), foreign.Handle), "its id is the plugin's own")
	_, err = plugin.GetSnapshot(t.Context(), foreign.Handle)
	require.ErrorIs(t, err, volume.ErrNotFound)
}

// specOf returns a volume of the fake as the plugin has it.
func specOf(t *testing.T, plugin *fake.Plugin, name string) *volume.Spec {
	t.Helper()
	made, err := plugin.ConstructVolumeSpec(name, "/")
	require.NoError(t, err)
	return made.Spec
}

// What the plugin cannot look up is what it has said last.
func TestASnapshotWithoutALookUp(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	plugin.Inject(fake.MethodGetSnapshot, fake.FailN(-1, volume.ErrUnsupported))
	plugin.Inject(fake.MethodGetGroupSnapshot, fake.FailN(-1, volume.ErrUnsupported))
	made := c.snapshot(t, "snap", "data")
	assert.Equal(t, made.String(), c.snapshot(t, "snap", "data").String(), "it is asked for once more")
	found, err := c.getSnapshot(t.Context(), "snap")
	require.NoError(t, err)
	assert.Equal(t, made.String(), found.String())
	_, err = c.getSnapshot(t.Context(), "none")
	codeIs(t, codes.NotFound, err)
	restored, err := c.tryRestore(t.Context(), "restored", "snap", nil)
	require.NoError(t, err)
	assert.Equal(t, "snap", restored.GetContentSource().GetSnapshot().GetSnapshotId())
	group, err := c.tryGroup(t.Context(), "group", "data")
	require.NoError(t, err)
	response, err := c.group().GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "group"})
	require.NoError(t, err)
	assert.Equal(t, group.String(), response.GetGroupSnapshot().String())

	// Of what may be half deleted the plugin's last word is old.
	lost := fake.Fail(volume.Uncertain(errors.New("lost")))
	plugin.Inject(fake.MethodDeleteSnapshot, lost)
	plugin.Inject(fake.MethodDeleteGroupSnapshot, lost)
	require.Error(t, c.deleteSnapshot(t.Context(), "snap"))
	_, err = c.getSnapshot(t.Context(), "snap")
	codeIs(t, codes.Unavailable, err)
	_, err = c.tryRestore(t.Context(), "late", "snap", nil)
	codeIs(t, codes.Unavailable, err)
	_, err = c.group().DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group"})
	require.Error(t, err)
	_, err = c.group().GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "group"})
	codeIs(t, codes.Unavailable, err)
}

// A volume that is restored has the content of that moment and at least the size of its snapshot, and is made once.
func TestAVolumeIsRestored(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, mounted(writer))
	a := c.target("a")
	require.NoError(t, c.publish(t.Context(), a))
	require.NoError(t, os.WriteFile(filepath.Join(a, "file"), []byte("then"), 0o600))
	syscall.Sync()
	c.snapshot(t, "snap", "data")
	require.NoError(t, os.WriteFile(filepath.Join(a, "file"), []byte("later"), 0o600))

	_, err := c.tryRestore(t.Context(), "restored", "none", nil)
	codeIs(t, codes.NotFound, err)
	_, err = c.tryRestore(t.Context(), "restored", "snap", &csi.CapacityRange{RequiredBytes: 32 * mebibyte})
	codeIs(t, codes.OutOfRange, err)
	_, err = c.tryRestore(t.Context(), "restored", "snap", &csi.CapacityRange{LimitBytes: 32 * mebibyte})
	codeIs(t, codes.OutOfRange, err)
	restored, err := c.tryRestore(t.Context(), "restored", "snap", nil)
	require.NoError(t, err)
	assert.Equal(t, 64*mebibyte, restored.GetCapacityBytes())
	require.NoError(t, c.deleteSnapshot(t.Context(), "snap"))
	again, err := c.tryRestore(t.Context(), "restored", "snap", nil)
	require.NoError(t, err, "the snapshot is gone, and the volume is there")
	assert.Equal(t, restored.String(), again.String())
	_, err = c.tryRestore(t.Context(), "restored", "another", nil)
	codeIs(t, codes.AlreadyExists, err)

	require.NoError(t, c.unpublish(t.Context(), a))
	require.NoError(t, c.unstage(t.Context()))
	require.NoError(t, c.delete(t.Context()))
	c.volume = restored
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), a))
	content, err := os.ReadFile(filepath.Join(a, "file"))
	require.NoError(t, err)
	assert.Equal(t, "then", string(content))
	c.end(t, a)
}

// The plugin finds a restored volume whose creation is uncertain, also if its snapshot is gone.
func TestARestoredVolumeIsFoundAgain(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	c.snapshot(t, "snap", "data")
	plugin.Inject(fake.MethodProvision, fake.FailAfter(volume.Uncertain(errors.New("the answer was lost"))))
	_, err := c.tryRestore(t.Context(), "restored", "snap", nil)
	codeIs(t, codes.Unavailable, err)
	require.NoError(t, c.deleteSnapshot(t.Context(), "snap"))
	restored, err := c.tryRestore(t.Context(), "restored", "snap", &csi.CapacityRange{RequiredBytes: 64 * mebibyte})
	require.NoError(t, err)
	assert.Equal(t, "restored", restored.GetVolumeId())
	assert.Equal(t, []string{"data", "restored"}, plugin.Backend().Handles())
}

// tryCopy makes a volume of another one.
func (c *caller) tryCopy(ctx context.Context, name, source string) (*csi.Volume, error) {
	response, err := c.control.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{c.capability},
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source},
		}},
	})
	return response.GetVolume(), err
}

// The plugin finds a copy whose creation is uncertain, also if its source is gone. No answer says that the copy does not exist.
func TestACopyIsFoundAgain(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	plugin.Inject(fake.MethodProvision, fake.FailAfter(volume.Uncertain(errors.New("the answer was lost"))))
	_, err := c.tryCopy(t.Context(), "copy", "data")
	codeIs(t, codes.Unavailable, err)
	require.NoError(t, c.delete(t.Context()))
	_, err = c.tryCopy(t.Context(), "copy", "another")
	codeIs(t, codes.AlreadyExists, err)
	for _, failure := range []error{errors.New("not now"), volume.ErrNotFound, syscall.ENOSPC} {
		plugin.Inject(fake.MethodProvision, fake.Fail(failure))
		_, err = c.tryCopy(t.Context(), "copy", "data")
		codeIs(t, codes.Unavailable, err)
	}
	made, err := c.tryCopy(t.Context(), "copy", "data")
	require.NoError(t, err)
	assert.Equal(t, 64*mebibyte, made.GetCapacityBytes(), "as large as the source was")
	assert.Equal(t, "data", made.GetContentSource().GetVolume().GetVolumeId())
	assert.Equal(t, []string{"copy"}, plugin.Backend().Handles())
	_, err = c.tryCopy(t.Context(), "another", "data")
	codeIs(t, codes.NotFound, err)
}

// A copy that no attempt has made, and whose source is gone, is refused for good: the plugin proves that there is none. What was
// planned under its name is forgotten.
func TestACopyThatWasNeverMadeEnds(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	data := c.volume
	for range 2 {
		plugin.Inject(fake.MethodProvision, fake.Fail(volume.Uncertain(errors.New("the answer was lost"))))
		_, err := c.tryCopy(t.Context(), "copy", "data")
		codeIs(t, codes.Unavailable, err)
	}
	c.snapshot(t, "snap", "data")
	plugin.Inject(fake.MethodProvision, fake.Fail(volume.Uncertain(errors.New("the answer was lost"))))
	_, err := c.tryRestore(t.Context(), "restored", "snap", nil)
	codeIs(t, codes.Unavailable, err)
	require.NoError(t, c.deleteSnapshot(t.Context(), "snap"))
	require.NoError(t, c.delete(t.Context()))
	_, err = c.tryCopy(t.Context(), "copy", "data")
	codeIs(t, codes.NotFound, err)
	_, err = c.tryRestore(t.Context(), "restored", "snap", nil)
	codeIs(t, codes.NotFound, err)
	require.NoError(t, c.create(t.Context(), "copy"), "the name is free")
	assert.Equal(t, []string{"copy"}, plugin.Backend().Handles())
	assert.NotEqual(t, data.GetVolumeId(), c.volume.GetVolumeId())
}

// A volume whose deletion has begun is neither copied nor validated: it may not be whole.
func TestAVolumeThatIsBeingDeletedIsOfNoUse(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "data")
	validate := func() error {
		_, err := c.control.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: c.volume.GetVolumeId(), VolumeCapabilities: []*csi.VolumeCapability{c.capability},
		})
		return err
	}
	require.NoError(t, validate())
	plugin.Inject(fake.MethodDelete, fake.Fail(volume.Uncertain(errors.New("the answer was lost"))))
	codeIs(t, codes.Unavailable, c.delete(t.Context()))
	codeIs(t, codes.NotFound, validate())
	_, err := c.tryCopy(t.Context(), "copy", "data")
	codeIs(t, codes.Unavailable, err)
	assert.Equal(t, []string{"data"}, plugin.Backend().Handles())
	require.NoError(t, c.delete(t.Context()))
	_, err = c.tryCopy(t.Context(), "copy", "data")
	codeIs(t, codes.NotFound, err)
}

// A group is made once for each name, of the volumes and with the parameters that were asked for. Its snapshots go with it.
func TestGroupsOfSnapshots(t *testing.T) {
	c, plugin := withVolumes(t, optionsIn(t.TempDir()), "one", "two", "three")
	plugin.Inject(fake.MethodCreateGroupSnapshot, fake.FailAfter(volume.Uncertain(errors.New("the answer was lost"))))
	_, err := c.tryGroup(t.Context(), "group", "one", "two")
	codeIs(t, codes.Unavailable, err)
	group, err := c.tryGroup(t.Context(), "group", "two", "one")
	require.NoError(t, err)
	require.Len(t, group.GetSnapshots(), 2)
	assert.True(t, group.GetReadyToUse())
	ids := map[string]string{}
	for _, s := range group.GetSnapshots() {
		ids[s.GetSourceVolumeId()] = s.GetSnapshotId()
		assert.Equal(t, group.GetGroupSnapshotId(), s.GetGroupSnapshotId())
		codeIs(t, codes.InvalidArgument, c.deleteSnapshot(t.Context(), s.GetSnapshotId()))
	}
	assert.Contains(t, ids, "one")
	assert.Contains(t, ids, "two")
	again, err := c.tryGroup(t.Context(), "group", "one", "two")
	require.NoError(t, err)
	assert.Equal(t, group.String(), again.String())
	for name, sources := range map[string][]string{"fewer": {"one"}, "more": {"one", "two", "three"}, "others": {"one", "three"}} {
		_, err = c.tryGroup(t.Context(), "group", sources...)
		codeIs(t, codes.AlreadyExists, err)
		assert.Error(t, err, name)
	}
	_, err = c.group().CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
		Name: "group", SourceVolumeIds: []string{"one", "two"}, Parameters: map[string]string{"colour": "blue"},
	})
	codeIs(t, codes.AlreadyExists, err)
	_, err = c.tryGroup(t.Context(), "new", "one", "one")
	codeIs(t, codes.InvalidArgument, err)
	_, err = c.tryGroup(t.Context(), "new", "one", "missing")
	codeIs(t, codes.NotFound, err)

	get := func(ids ...string) error {
		_, err := c.group().GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: ids})
		return err
	}
	remove := func(ids ...string) error {
		_, err := c.group().DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: ids})
		return err
	}
	require.NoError(t, get(ids["one"], ids["two"]))
	codeIs(t, codes.InvalidArgument, get("none"))
	codeIs(t, codes.InvalidArgument, remove("none"))
	require.NoError(t, get(), "it was left whole")
	require.NoError(t, remove())
	require.NoError(t, remove())
	codeIs(t, codes.NotFound, get())
	assert.Empty(t, plugin.Backend().Snapshots())
}

// A plugin that makes no snapshots is no driver that does.
func TestAPluginWithoutSnapshotsServesNone(t *testing.T) {
	mounttest.RequireMounts(t)
	dir := t.TempDir()
	plugin := hostpath.New(hostpath.Options{BaseDir: filepath.Join(dir, "volumes")})
	c := &caller{driver: serve(t, plugin, optionsIn(dir)), capability: mounted(writer)}
	can, err := c.control.ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	require.NoError(t, err)
	assert.NotContains(t, can.String(), "SNAPSHOT")
	services, err := c.identity.GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	require.NoError(t, err)
	assert.NotContains(t, services.String(), "GROUP")
	_, err = c.trySnapshot(t.Context(), "snap", "data")
	codeIs(t, codes.Unimplemented, err)
	_, err = c.getSnapshot(t.Context(), "snap")
	codeIs(t, codes.Unimplemented, err)
	_, err = c.control.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	codeIs(t, codes.Unimplemented, err)
	codeIs(t, codes.Unimplemented, c.deleteSnapshot(t.Context(), "snap"))
	_, err = c.tryGroup(t.Context(), "group", "data")
	codeIs(t, codes.Unimplemented, err)
	_, err = c.tryRestore(t.Context(), "restored", "snap", nil)
	codeIs(t, codes.InvalidArgument, err)
}

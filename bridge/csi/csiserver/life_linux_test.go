package csiserver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// caller makes the calls of a life, and knows what it was told.
type caller struct {
	*driver
	capability *csi.VolumeCapability
	staging    string
	volume     *csi.Volume
	context    map[string]string // of ControllerPublishVolume
}

func mounted(mode csi.VolumeCapability_AccessMode_Mode, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: flags}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

func asDevice(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

func (c *caller) create(ctx context.Context, name string) error {
	response, err := c.control.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{c.capability},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mebibyte},
	})
	if err == nil {
		c.volume = response.GetVolume()
	}
	return err
}

func (c *caller) attach(ctx context.Context) error {
	if c.options.Attach == csiserver.AttachOnNode {
		return nil
	}
	response, err := c.control.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: c.volume.GetVolumeId(), NodeId: "node-1", VolumeCapability: c.capability, VolumeContext: c.volume.GetVolumeContext(),
	})
	c.context = response.GetPublishContext()
	return err
}

func (c *caller) stage(ctx context.Context) error {
	_, err := c.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: c.volume.GetVolumeId(), StagingTargetPath: c.staging, VolumeCapability: c.capability,
		PublishContext: c.context, VolumeContext: c.volume.GetVolumeContext(),
	})
	return err
}

func (c *caller) publish(ctx context.Context, target string) error {
	return c.publishAs(ctx, target, false)
}

func (c *caller) publishAs(ctx context.Context, target string, readOnly bool) error {
	_, err := c.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: c.volume.GetVolumeId(), StagingTargetPath: c.staging, TargetPath: target, VolumeCapability: c.capability,
		PublishContext: c.context, VolumeContext: c.volume.GetVolumeContext(), Readonly: readOnly,
	})
	return err
}

func (c *caller) unpublish(ctx context.Context, target string) error {
	_, err := c.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: c.volume.GetVolumeId(), TargetPath: target})
	return err
}

func (c *caller) unstage(ctx context.Context) error {
	_, err := c.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: c.volume.GetVolumeId(), StagingTargetPath: c.staging})
	return err
}

func (c *caller) detach(ctx context.Context) error {
	if c.options.Attach == csiserver.AttachOnNode {
		return nil
	}
	_, err := c.control.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: c.volume.GetVolumeId(), NodeId: "node-1"})
	return err
}

func (c *caller) delete(ctx context.Context) error {
	_, err := c.control.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: c.volume.GetVolumeId()})
	return err
}

// newCaller serves loop-block in dir, for volumes of the capability.
func newCaller(t *testing.T, dir string, capability *csi.VolumeCapability) *caller {
	t.Helper()
	options := optionsIn(dir)
	options.Attach = csiserver.AttachOnNode
	return &caller{
		driver: serve(t, loopblock.New(loopblock.Options{}), options), capability: capability, staging: filepath.Join(dir, "staging"),
	}
}

// staged returns a caller whose volume is staged.
func staged(t *testing.T, capability *csi.VolumeCapability) *caller {
	t.Helper()
	c := newCaller(t, t.TempDir(), capability)
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	require.NoError(t, c.stage(t.Context()))
	return c
}

func (c *caller) target(name string) string {
	return filepath.Join(filepath.Dir(c.options.Socket), name)
}

// end takes everything away and looks that nothing is left.
func (c *caller) end(t *testing.T, targets ...string) {
	t.Helper()
	for _, target := range targets {
		require.NoError(t, c.unpublish(t.Context(), target))
		_, err := os.Lstat(target)
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	require.NoError(t, c.unstage(t.Context()))
	require.NoError(t, c.detach(t.Context()))
	require.NoError(t, c.delete(t.Context()))
	c.stop()
	assertNothingLeft(t, c.options)
}

func codeIs(t *testing.T, want codes.Code, err error) {
	t.Helper()
	assert.Equal(t, want, status.Code(err), "%v", err)
}

func mountsAt(t *testing.T, path string) int {
	t.Helper()
	stack, err := mount.Stack(t.Context(), mount.New(mount.Options{}), path)
	require.NoError(t, err)
	return len(stack)
}

func TestTwoTargetsShowOneVolume(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, mounted(writer))
	a, b := c.target("a"), c.target("b")
	for range 3 {
		require.NoError(t, c.publish(t.Context(), a))
		require.NoError(t, c.publishAs(t.Context(), b, true))
	}
	assert.Equal(t, 1, mountsAt(t, a))
	assert.Equal(t, 1, mountsAt(t, b))
	require.NoError(t, os.WriteFile(filepath.Join(a, "file"), []byte("kept"), 0o600))
	content, err := os.ReadFile(filepath.Join(b, "file"))
	require.NoError(t, err)
	assert.Equal(t, "kept", string(content))
	require.ErrorIs(t, os.WriteFile(filepath.Join(b, "file"), nil, 0o600), unix.EROFS)
	codeIs(t, codes.AlreadyExists, c.publishAs(t.Context(), a, true))
	codeIs(t, codes.FailedPrecondition, c.unstage(t.Context()))
	codeIs(t, codes.FailedPrecondition, c.delete(t.Context()))
	c.end(t, a, b)
}

func TestABusyTargetIsNotUnpublished(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, mounted(writer))
	a := c.target("a")
	require.NoError(t, c.publish(t.Context(), a))
	file, err := os.Create(filepath.Join(a, "open"))
	require.NoError(t, err)
	codeIs(t, codes.FailedPrecondition, c.unpublish(t.Context(), a))
	assert.Equal(t, 1, mountsAt(t, a))
	require.NoError(t, file.Close())
	c.end(t, a)
}

func TestForeignMountsAreLeft(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, mounted(writer))
	mounter, a, b := mount.New(mount.Options{}), c.target("a"), c.target("b")
	require.NoError(t, mounter.Mount(t.Context(), mount.Request{Source: "foreign", Target: a, FSType: "tmpfs"}))
	codeIs(t, codes.FailedPrecondition, c.publish(t.Context(), a))
	codeIs(t, codes.FailedPrecondition, c.unpublish(t.Context(), a))
	require.NoError(t, c.publish(t.Context(), b))
	require.NoError(t, mounter.Mount(t.Context(), mount.Request{Source: "foreign", Target: b, FSType: "tmpfs"}))
	codeIs(t, codes.Unavailable, c.publish(t.Context(), b))
	codeIs(t, codes.FailedPrecondition, c.unpublish(t.Context(), b))
	assert.Equal(t, 2, mountsAt(t, b))
	require.NoError(t, unix.Unmount(b, 0))
	require.NoError(t, mounter.Unmount(t.Context(), a, mount.UnmountOptions{}))
	c.end(t, b)
}

func TestADeviceIsPublished(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, asDevice(writer))
	a := c.target("a")
	for range 3 {
		require.NoError(t, c.publish(t.Context(), a))
	}
	assert.Equal(t, 1, mountsAt(t, a))
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(a, &stat))
	assert.Equal(t, uint32(unix.S_IFBLK), stat.Mode&unix.S_IFMT)
	require.NoError(t, os.WriteFile(a, []byte("on the device"), 0))
	stats, err := c.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "data", VolumePath: a})
	require.NoError(t, err)
	require.Len(t, stats.GetUsage(), 1)
	assert.Equal(t, 64*mebibyte, stats.GetUsage()[0].GetTotal())
	codeIs(t, codes.FailedPrecondition, c.publishAs(t.Context(), c.target("read-only"), true))
	c.end(t, a)
}

// A filesystem that was made is never given away as a device, nor the reverse.
func TestAVolumeIsUsedAsItWasMade(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, mounted(writer))
	c.capability = asDevice(writer)
	codeIs(t, codes.InvalidArgument, c.publish(t.Context(), c.target("a")))
	c.capability = mounted(writer)
	c.end(t)
}

// The kernel grows an xfs for every root, and an ext4 only for one with CAP_SYS_RESOURCE.
func TestAVolumeGrowsWhileItIsPublished(t *testing.T) {
	mounttest.RequireRoot(t)
	requireTool(t, "xfs")
	capability := mounted(writer)
	capability.GetMount().FsType = "xfs"
	c := staged(t, capability)
	a := c.target("a")
	require.NoError(t, c.publish(t.Context(), a))
	before := total(t, c, a)
	grown, err := c.control.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: "data", CapacityRange: &csi.CapacityRange{RequiredBytes: 512 * mebibyte},
	})
	require.NoError(t, err)
	assert.Equal(t, 512*mebibyte, grown.GetCapacityBytes())
	require.True(t, grown.GetNodeExpansionRequired())
	_, err = c.node.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: "data", VolumePath: a, CapacityRange: &csi.CapacityRange{RequiredBytes: 512 * mebibyte},
	})
	require.NoError(t, err)
	assert.Greater(t, total(t, c, a), before+100*mebibyte)
	c.end(t, a)
}

// requireTool skips where a filesystem cannot be made, and fails under CI.
func requireTool(t testing.TB, fsType string) {
	t.Helper()
	err := format.CanMake(fsType)
	if err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("missing, and under CI nothing is skipped: %v", err)
	}
	t.Skipf("missing: %v", err)
}

// total is what the filesystem at a path has, by the driver's word.
func total(t *testing.T, c *caller, path string) int64 {
	t.Helper()
	stats, err := c.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "data", VolumePath: path})
	require.NoError(t, err)
	require.Len(t, stats.GetUsage(), 2)
	return stats.GetUsage()[0].GetTotal()
}

// A server that is stopped and started between any two calls goes on where it was.
func TestAServerIsStartedAnewBetweenCalls(t *testing.T) {
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	c := newCaller(t, dir, mounted(writer))
	again := func() {
		c.stop()
		next := newCaller(t, dir, c.capability)
		next.volume, next.context = c.volume, c.context
		c = next
	}
	a := c.target("a")
	for _, step := range []func() error{
		func() error { return c.create(t.Context(), "data") },
		func() error { return c.stage(t.Context()) },
		func() error { return c.publish(t.Context(), a) },
	} {
		require.NoError(t, step())
		again()
		require.NoError(t, step())
	}
	require.NoError(t, os.WriteFile(filepath.Join(a, "file"), []byte("kept"), 0o600))
	again()
	for _, step := range []func() error{
		func() error { return c.unpublish(t.Context(), a) },
		func() error { return c.unstage(t.Context()) },
		func() error { return c.delete(t.Context()) },
	} {
		require.NoError(t, step())
		again()
		require.NoError(t, step())
	}
	c.stop()
	assertNothingLeft(t, c.options)
}

// With a copy of its own, and the content of its source.
func TestACopyHasTheContentOfItsSource(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, mounted(writer))
	a := c.target("a")
	require.NoError(t, c.publish(t.Context(), a))
	require.NoError(t, os.WriteFile(filepath.Join(a, "file"), []byte("kept"), 0o600))
	require.NoError(t, c.unpublish(t.Context(), a))
	require.NoError(t, c.unstage(t.Context()))
	response, err := c.control.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "copy", VolumeCapabilities: []*csi.VolumeCapability{c.capability},
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "data"},
		}},
	})
	require.NoError(t, err)
	require.NoError(t, c.delete(t.Context()))
	c.volume = response.GetVolume()
	assert.Equal(t, "data", c.volume.GetContentSource().GetVolume().GetVolumeId())
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), a))
	content, err := os.ReadFile(filepath.Join(a, "file"))
	require.NoError(t, err)
	assert.Equal(t, "kept", string(content))
	c.end(t, a)
}

// The mounts of a container that was not given a mount of the host end with it; its targets stay.
func TestWhatIsNotMountedAnyMoreIsStagedAgain(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, mounted(writer))
	a, b := c.target("a"), c.target("b")
	require.NoError(t, c.publish(t.Context(), a))
	setUp, err := filepath.Glob(filepath.Join(c.options.RootDir, "pods/*/volumes/*/data"))
	require.NoError(t, err)
	require.Len(t, setUp, 1)
	require.NoError(t, unix.Unmount(setUp[0], 0))
	require.NoError(t, unix.Unmount(filepath.Join(c.options.RootDir, "plugins", loopblock.Name, "mounts/data"), 0))
	require.NoError(t, c.publish(t.Context(), b))
	require.NoError(t, os.WriteFile(filepath.Join(b, "file"), []byte("kept"), 0o600))
	content, err := os.ReadFile(filepath.Join(a, "file"))
	require.NoError(t, err)
	assert.Equal(t, "kept", string(content))
	c.end(t, a, b)
}

// VOLUME_MOUNT_GROUP: the plugin gives the content to the group, also what was there before; without a group it stays as it is.
func TestTheContentIsGivenToTheMountGroup(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, mounted(writer))
	a := c.target("a")
	require.NoError(t, c.publish(t.Context(), a))
	require.NoError(t, os.WriteFile(filepath.Join(a, "before"), nil, 0o600))
	assert.Equal(t, uint32(0), groupOf(t, filepath.Join(a, "before")))
	require.NoError(t, c.unpublish(t.Context(), a))
	require.NoError(t, c.unstage(t.Context()))

	c.capability = mounted(writer)
	c.capability.GetMount().VolumeMountGroup = "4321"
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), a))
	require.NoError(t, os.WriteFile(filepath.Join(a, "after"), nil, 0o600))
	for _, name := range []string{".", "before", "after"} {
		assert.Equal(t, uint32(4321), groupOf(t, filepath.Join(a, name)), name)
	}
	c.end(t, a)
}

func groupOf(t *testing.T, path string) uint32 {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(path, &stat))
	return stat.Gid
}

// What Kubernetes' administrators write by hand: an id, and no context.
func TestAVolumeThatWasMadeByHandIsUsed(t *testing.T) {
	mounttest.RequireRoot(t)
	c := newCaller(t, t.TempDir(), mounted(writer))
	require.NoError(t, c.create(t.Context(), "data"))
	made := c.volume
	c.volume = &csi.Volume{VolumeId: "data", VolumeContext: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "x"}}
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.publish(t.Context(), c.target("a")))
	c.volume = made
	c.end(t, c.target("a"))
}

func TestOptionsThatAreRefused(t *testing.T) {
	plugin := loopblock.New(loopblock.Options{})
	for name, change := range map[string]func(*csiserver.Options){
		"socket":       func(o *csiserver.Options) { o.Socket = "relative" },
		"long socket":  func(o *csiserver.Options) { o.Socket = "/" + string(make([]byte, 120)) },
		"socket mode":  func(o *csiserver.Options) { o.SocketMode = 0o666 },
		"root":         func(o *csiserver.Options) { o.RootDir = "" },
		"state":        func(o *csiserver.Options) { o.StateDir = "" },
		"runtime":      func(o *csiserver.Options) { o.RuntimeDir = "" },
		"one for both": func(o *csiserver.Options) { o.RuntimeDir = o.StateDir },
		"node":         func(o *csiserver.Options) { o.NodeName = "" },
		"no node":      func(o *csiserver.Options) { o.Services, o.Attach = csiserver.ControllerOnly, csiserver.AttachOnNode },
	} {
		options := optionsIn("/dir")
		change(&options)
		_, err := csiserver.New(plugin, options)
		require.ErrorIs(t, err, volume.ErrInvalid, name)
	}
	_, err := csiserver.New(nil, optionsIn("/dir"))
	require.ErrorIs(t, err, volume.ErrInvalid)
}

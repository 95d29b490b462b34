package csiserver_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// measure measures the volume at a path.
func (c *caller) measure(t *testing.T, path string) error {
	t.Helper()
	_, err := c.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "data", VolumePath: path})
	return err
}

// hooked is loop-block with a hook after a volume was measured, and one in the place of the next calls that unmount a device.
type hooked struct {
	*loopblock.Plugin

	afterMetrics  func()
	unmountDevice func() error
}

func (h *hooked) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	unmounter, err := h.Plugin.NewUnmounter(name, uid)
	return hookedUnmounter{unmounter, h}, err
}

type hookedUnmounter struct {
	volume.Unmounter

	plugin *hooked
}

func (h hookedUnmounter) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	measured, err := h.Unmounter.GetMetrics(ctx)
	h.plugin.afterMetrics()
	return measured, err
}

func (h *hooked) NewDeviceUnmounter() (volume.DeviceUnmounter, error) {
	unmounter, err := h.Plugin.NewDeviceUnmounter()
	return hookedDeviceUnmounter{unmounter, h}, err
}

type hookedDeviceUnmounter struct {
	volume.DeviceUnmounter

	plugin *hooked
}

func (h hookedDeviceUnmounter) UnmountDevice(ctx context.Context, path string) error {
	if instead := h.plugin.unmountDevice; instead != nil {
		return instead()
	}
	return h.DeviceUnmounter.UnmountDevice(ctx, path)
}

// stagedBy makes, attaches and stages a volume of a plugin.
func stagedBy(t *testing.T, plugin volume.VolumePlugin, options csiserver.Options) *caller {
	t.Helper()
	c := &caller{driver: serve(t, plugin, options), capability: mounted(writer), staging: filepath.Join(filepath.Dir(options.RootDir), "staging")}
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	require.NoError(t, c.stage(t.Context()))
	return c
}

// A volume that is taken away while it is measured is not measured: the plugin may have measured what is beneath.
func TestAVolumeThatIsTakenAwayIsNotMeasured(t *testing.T) {
	mounttest.RequireRoot(t)
	plugin := &hooked{Plugin: loopblock.New(loopblock.Options{}), afterMetrics: func() {}}
	c := stagedBy(t, plugin, optionsIn(t.TempDir()))
	a := c.target("a")
	require.NoError(t, c.publish(t.Context(), a))
	require.NoError(t, c.measure(t, a))
	plugin.afterMetrics = func() { assert.NoError(t, c.unpublish(t.Context(), a)) }
	codeIs(t, codes.NotFound, c.measure(t, a))
	c.end(t)
}

// A volume whose unstaging was abandoned is measured only after it was staged again.
func TestAVolumeThatIsBeingUnstagedIsNotMeasured(t *testing.T) {
	mounttest.RequireRoot(t)
	var lines log
	options := optionsIn(t.TempDir())
	options.Logger = slog.New(slog.NewTextHandler(&lines, nil))
	running := abandoned{done: make(chan struct{})}
	plugin := &hooked{Plugin: loopblock.New(loopblock.Options{}), unmountDevice: func() error { return running }}
	c := stagedBy(t, plugin, options)
	require.NoError(t, c.measure(t, c.staging))
	codeIs(t, codes.Unavailable, c.unstage(t.Context()))
	codeIs(t, codes.NotFound, c.measure(t, c.staging))
	close(running.done)
	require.NoError(t, lines.await(t.Context(), "an abandoned call has ended"))
	require.NoError(t, c.stage(t.Context()))
	require.NoError(t, c.measure(t, c.staging))
	plugin.unmountDevice = nil
	c.end(t)
}

// A volume whose mount is gone is not measured at its staging path: the filesystem beneath is not the volume's.
func TestTheFilesystemBeneathIsNotMeasured(t *testing.T) {
	mounttest.RequireRoot(t)
	c := staged(t, mounted(writer))
	a := c.target("a")
	require.NoError(t, c.publish(t.Context(), a))
	require.NoError(t, c.measure(t, a))
	require.NoError(t, unix.Unmount(a, 0))
	codeIs(t, codes.NotFound, c.measure(t, a))
	require.NoError(t, c.unpublish(t.Context(), a))
	require.NoError(t, unix.Unmount(filepath.Join(c.options.RootDir, "plugins", loopblock.Name, "mounts/data"), 0))
	codeIs(t, codes.NotFound, c.measure(t, c.staging))
	c.end(t)
}

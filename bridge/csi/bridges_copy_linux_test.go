package csi_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// servedAgain connects csidriver to fake, serves its plugin with csiserver, and returns a client of that server's controller service.
func servedAgain(t *testing.T, fake *fakedriver.Driver) csi.ControllerClient {
	t.Helper()
	dir := shortDir(t)
	stop, err := fake.Serve(filepath.Join(dir, "fake.sock"))
	require.NoError(t, err)
	t.Cleanup(stop)
	driver, err := csidriver.New(csidriver.Options{Socket: filepath.Join(dir, "fake.sock"), Driver: fakedriver.Name, Nodes: byName{}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, driver.Close()) })
	require.NoError(t, driver.Connect(t.Context()))
	server, err := csiserver.New(driver.Plugin(), csiserver.Options{
		Socket: socketOf(dir), RootDir: filepath.Join(dir, "root"), StateDir: filepath.Join(dir, "state"),
		RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1",
	})
	require.NoError(t, err)
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() { end(); assert.NoError(t, <-ended) })
	connection, err := grpc.NewClient("unix:"+socketOf(dir), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, connection.Close()) })
	return csi.NewControllerClient(connection)
}

// The answer to a CreateVolume with a source is lost, and the source is deleted. Through both bridges, a repeated call returns the
// volume if the driver created it, and NotFound if not.
func TestACopyWhoseSourceIsGoneEndsThroughBothBridges(t *testing.T) {
	mounttest.RequireMounts(t)
	for name, made := range map[string]bool{"made": true, "not made": false} {
		t.Run(name, func(t *testing.T) {
			options := fakedriver.Options{Dir: t.TempDir()}.WithSnapshots()
			options.Controller = append(options.Controller, csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
			fake := fakedriver.New(options)
			controller := servedAgain(t, fake)
			capability := &csi.VolumeCapability{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			}
			create := func(name string, source *csi.VolumeContentSource) (string, error) {
				response, err := controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
					Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability}, VolumeContentSource: source,
				})
				return response.GetVolume().GetVolumeId(), err
			}
			remove := func(id string) {
				_, err := controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
				require.NoError(t, err)
			}
			id, err := create("data", nil)
			require.NoError(t, err)
			snapshot, err := controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: id})
			require.NoError(t, err)
			sources := map[string]*csi.VolumeContentSource{
				"copy": {Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}},
				"restored": {Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{
					SnapshotId: snapshot.GetSnapshot().GetSnapshotId(),
				}}},
			}
			for name, source := range sources {
				fake.Plan("CreateVolume", fakedriver.Fault{Code: codes.Unavailable, After: made})
				_, err = create(name, source)
				require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			}
			_, err = controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snapshot.GetSnapshot().GetSnapshotId()})
			require.NoError(t, err)
			remove(id)
			for name, source := range sources {
				id, err := create(name, source)
				if made {
					require.NoError(t, err, name)
					remove(id)
				}
				if !made {
					assert.Equal(t, codes.NotFound, status.Code(err), "%s: %v", name, err)
				}
			}
		})
	}
}

//go:build nfsguest

package csiserver_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/csitest"
	"github.com/volumekit/volumekit/plugins/nfs"
	"github.com/volumekit/volumekit/volume"
)

// exportDir is the directory that the kernel's NFS server on 127.0.0.1 exports in the guest of internal/guest, as the root of NFS version 4.
const exportDir = "/tmp/export"

// directories adds provisioning to the NFS plugin: each volume is a directory of the export. csi-sanity needs a driver that creates
// volumes.
type directories struct{ *nfs.Plugin }

func (d directories) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	if err := volume.CheckPathElement(options.PVName); err != nil {
		return nil, err
	}
	if len(options.Parameters) > 0 || volume.CheckPersistentVolumeClaimModeBlock(options.PVC) {
		return nil, volume.ErrInvalid
	}
	return directory{options: options}, nil
}

func (d directories) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	return directory{options: volume.VolumeOptions{PVName: filepath.Base(spec.PersistentVolume.Spec.NFS.Path)}}, nil
}

// directory creates and deletes one volume.
type directory struct {
	volume.MetricsNil

	options volume.VolumeOptions
}

func (directory) GetPath() string { return "" }

// Provision implements volume.Provisioner.
func (d directory) Provision(context.Context, *v1.Node, []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	if err := os.Mkdir(filepath.Join(exportDir, d.options.PVName), 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	claim := d.options.PVC.Spec
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: d.options.PVName}, Spec: v1.PersistentVolumeSpec{
		Capacity: claim.Resources.Requests, AccessModes: claim.AccessModes, VolumeMode: claim.VolumeMode, MountOptions: d.options.MountOptions,
	}}
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: "127.0.0.1", Path: "/" + d.options.PVName}
	return pv, nil
}

// Delete implements volume.Deleter.
func (d directory) Delete(context.Context) error {
	return os.RemoveAll(filepath.Join(exportDir, d.options.PVName))
}

// csi-sanity passes with the NFS plugin, on the NFS server and client of the kernel. No directory of a volume is left.
func TestSanityOfNFS(t *testing.T) {
	before, err := os.ReadDir(exportDir) // The tests of the plugin itself have a directory there.
	require.NoError(t, err)
	result := runSanity(t, serve(t, directories{nfs.New(nfs.Options{})}, optionsIn(t.TempDir())), csitest.Run{})
	assert.Equal(t, 36, result.Passed)
	left, err := os.ReadDir(exportDir)
	require.NoError(t, err)
	assert.Equal(t, namesOf(before), namesOf(left))
}

func namesOf(entries []os.DirEntry) []string {
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

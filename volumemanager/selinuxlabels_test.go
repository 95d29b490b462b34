package volumemanager

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// hostWith returns the root directory of a host with these files.
func hostWith(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
	}
	return root
}

func policyFiles() map[string]string {
	return map[string]string{
		"sys/fs/selinux/enforce": "1",
		"etc/selinux/config":     "# SELINUXTYPE=other\nSELINUX=enforcing\nSELINUXTYPE=targeted \n",
		"etc/selinux/targeted/contexts/lxc_contexts": "process = \"system_u:system_r:container_t:s0\"\n" +
			"content = \"system_u:object_r:virt_var_lib_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n",
	}
}

func TestTheLabelOfFilesIsThatOfThePolicyWithTheLevelOfTheContainer(t *testing.T) {
	labels, err := ReadSELinuxLabels(hostWith(t, policyFiles()))
	require.NoError(t, err)
	for want, options := range map[string]*v1.SELinuxOptions{
		"system_u:object_r:container_file_t:s0:c10,c20": {Level: "s0:c10,c20"},
		"other_u:object_r:container_file_t:s0-s0:c1.c9": {User: "other_u", Role: "r", Type: "spc_t", Level: "s0-s0:c1.c9"},
	} {
		got, err := labels.FileLabel(options)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, options := range []*v1.SELinuxOptions{nil, {}, {Type: "spc_t"}} {
		got, err := labels.FileLabel(options)
		require.NoError(t, err)
		assert.Empty(t, got, "its runtime draws the level")
	}
	for _, options := range []*v1.SELinuxOptions{{Level: `s0",exec`}, {Level: "s0 x"}, {Level: "s0", User: "a:b"}, {Level: "s0", Type: "a\nb"}} {
		_, err := labels.FileLabel(options)
		require.ErrorIs(t, err, volume.ErrInvalid)
	}
}

func TestAHostWithoutSELinuxSaysSo(t *testing.T) {
	for without, target := range map[string]error{
		"sys/fs/selinux/enforce": ErrNoSELinux, "etc/selinux/config": os.ErrNotExist, "etc/selinux/targeted/contexts/lxc_contexts": os.ErrNotExist,
	} {
		files := policyFiles()
		delete(files, without)
		_, err := ReadSELinuxLabels(hostWith(t, files))
		require.ErrorIs(t, err, target, without)
	}
	for name, content := range map[string]string{
		"etc/selinux/config":                         "SELINUXTYPE=../..\n",
		"etc/selinux/targeted/contexts/lxc_contexts": "file = \"container_file_t\"\n",
	} {
		files := policyFiles()
		files[name] = content
		_, err := ReadSELinuxLabels(hostWith(t, files))
		require.ErrorIs(t, err, volume.ErrInvalid, name)
	}
	files := policyFiles()
	files["etc/selinux/config"] = "SELINUX=disabled\n"
	_, err := ReadSELinuxLabels(hostWith(t, files))
	require.ErrorIs(t, err, volume.ErrInvalid)
}

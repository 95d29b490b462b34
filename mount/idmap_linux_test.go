package mount_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// container are the users of a container as the tests map them: root is user 100000 of the host, and group 200000.
var container = mount.IDMappings{
	UIDs: []mount.IDMapping{{HostID: 100000, Size: 65536}},
	GIDs: []mount.IDMapping{{HostID: 200000, Size: 10}, {ContainerID: 10, HostID: 300000, Size: 10}},
}

// ownerOf returns the user and the group of a file.
func ownerOf(t *testing.T, path string) [2]int {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(path, &stat))
	return [2]int{int(stat.Uid), int(stat.Gid)}
}

// assertMaps mounts dir with its owners mapped and looks at them.
func assertMaps(t *testing.T, m *mount.Mounter, dir string) {
	t.Helper()
	file, target := filepath.Join(dir, "file"), filepath.Join(t.TempDir(), "target")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Chown(file, 7, 12))
	before, err := m.List(t.Context())
	require.NoError(t, err)
	require.NoError(t, m.CheckIDMappings(t.Context(), dir, container))
	require.NoError(t, m.CheckIDMappings(t.Context(), file, container), "a file")
	after, err := m.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, before, after, "a check leaves nothing")

	require.NoError(t, m.Mount(t.Context(), mount.Request{Source: dir, Target: target, Options: []string{"rbind", "ro"}, IDMappings: container}))
	defer func() { assert.NoError(t, m.Unmount(t.Context(), target, mount.UnmountOptions{})) }()
	assert.Equal(t, [2]int{100007, 300002}, ownerOf(t, filepath.Join(target, "file")))
	assert.Equal(t, [2]int{7, 12}, ownerOf(t, file))
	require.ErrorIs(t, os.WriteFile(filepath.Join(target, "new"), nil, 0o600), unix.EROFS)
	require.ErrorIs(t, m.CheckIDMappings(t.Context(), target, container), unix.EPERM, "it is mapped already")
}

func TestOwnersAreMapped(t *testing.T) {
	mounttest.RequireRoot(t)
	for _, fsType := range []string{"tmpfs", "ext4"} {
		t.Run(fsType, func(t *testing.T) {
			m, dir := mount.New(mount.Options{}), filepath.Join(t.TempDir(), "source")
			if fsType == "tmpfs" {
				require.NoError(t, m.Mount(t.Context(), mount.Request{Source: "memory", Target: dir, FSType: fsType}))
			} else {
				mountImage(t, fsType, dir)
			}
			defer func() { assert.NoError(t, m.Unmount(t.Context(), dir, mount.UnmountOptions{})) }()
			assertMaps(t, m, dir)
		})
	}
}

// mountImage mounts a new image at dir.
func mountImage(t *testing.T, fsType, dir string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 16<<20))
	mkfs, err := exec.LookPath("mkfs." + fsType)
	if err != nil {
		t.Skip("missing: mkfs." + fsType)
	}
	out, err := exec.CommandContext(t.Context(), mkfs, "-q", image).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Mkdir(dir, 0o755))
	out, err = exec.CommandContext(t.Context(), "mount", "-o", "loop", image, dir).CombinedOutput() // which detaches the device at the unmount
	require.NoError(t, err, string(out))
}

// A filesystem that maps no owners is found by trying, also where it is mounted beneath one that does. FUSE maps them since
// Linux 6.12, for servers that ask for it.
func TestOwnersOfSomeFilesystemsAreNotMapped(t *testing.T) {
	mounttest.RequireRoot(t)
	m, dir := mount.New(mount.Options{}), t.TempDir()
	require.NoError(t, m.Mount(t.Context(), mount.Request{Source: "memory", Target: dir, FSType: "tmpfs"}))
	t.Cleanup(func() { assert.NoError(t, m.Unmount(context.Background(), dir, mount.UnmountOptions{})) })
	beneath := filepath.Join(dir, "beneath")
	require.NoError(t, os.Mkdir(beneath, 0o755))
	mounttest.NewFUSE(t, mounttest.FUSEOptions{Target: beneath})
	target := filepath.Join(t.TempDir(), "target")
	for _, source := range []string{beneath, dir} {
		err := m.CheckIDMappings(t.Context(), source, container)
		require.ErrorIs(t, err, mount.ErrUnsupported)
		require.ErrorIs(t, err, unix.EINVAL)
		require.ErrorContains(t, err, source)
		err = m.Mount(t.Context(), mount.Request{Source: source, Target: target, Options: []string{"rbind"}, IDMappings: container})
		require.ErrorIs(t, err, mount.ErrUnsupported)
		assert.NoDirExists(t, target)
	}
	require.NoError(t, m.Mount(t.Context(), mount.Request{Source: dir, Target: target, Options: []string{"bind"}, IDMappings: container}), "without what is beneath")
	require.NoError(t, m.Unmount(t.Context(), target, mount.UnmountOptions{}))
}

func TestAKernelWithoutMountSetattrMapsNoOwners(t *testing.T) {
	mounttest.RequireMounts(t)
	m, dir := mount.New(mount.Options{Without: mount.FeatureMountSetattr}), t.TempDir()
	require.ErrorIs(t, m.CheckIDMappings(t.Context(), dir, container), mount.ErrUnsupported)
	target := filepath.Join(dir, "target")
	err := m.Mount(t.Context(), mount.Request{Source: dir, Target: target, Options: []string{"bind"}, IDMappings: container})
	require.ErrorIs(t, err, mount.ErrUnsupported)
	assert.NoDirExists(t, target)
}

func TestMalformedIDMappingsAreRefused(t *testing.T) {
	m, one := mount.New(mount.Options{}), []mount.IDMapping{{Size: 1}}
	for name, bad := range map[string]mount.IDMappings{
		"no groups":        {UIDs: one},
		"no users":         {GIDs: one},
		"an empty range":   {UIDs: []mount.IDMapping{{HostID: 1}}, GIDs: one},
		"past the last id": {UIDs: []mount.IDMapping{{HostID: 1<<32 - 1, Size: 2}}, GIDs: one},
	} {
		require.ErrorIs(t, m.CheckIDMappings(t.Context(), "/", bad), mount.ErrInvalid, name)
		_, err := mount.Request{Source: "/", Target: "/t", Options: []string{"bind"}, IDMappings: bad}.Plan()
		require.ErrorIs(t, err, mount.ErrInvalid, name)
	}
	_, err := mount.Request{Source: "memory", Target: "/t", FSType: "tmpfs", IDMappings: container}.Plan()
	require.ErrorIs(t, err, mount.ErrInvalid, "a filesystem is no bind")
	require.ErrorIs(t, m.CheckIDMappings(t.Context(), "relative", container), mount.ErrInvalid)
}

//go:build linux && uml

package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What is tested here needs a kernel that counts projects (CONFIG_QFMT_V2, CONFIG_XFS_QUOTA), as that of the Debian package
// user-mode-linux does. Build it with CGO_ENABLED=0 go test -c -tags uml, and in the guest:
//
//	modprobe -a loop quota_v2
//	truncate -s 300M e.img && mkfs.ext4 -q -O quota,project -E quotatype=prjquota e.img
//	truncate -s 320M x.img && mkfs.xfs -q x.img
//	mount -o loop,prjquota e.img /run/ext4 && mount -o loop,prjquota x.img /run/xfs
//	VOLUMEKIT_PROJECT_QUOTA=/run/ext4:/run/xfs usage.test -test.v -test.run Project
//
// quotaDirsEnv lists the directories in which filesystems are mounted so.
const quotaDirsEnv = "VOLUMEKIT_PROJECT_QUOTA"

const setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR on amd64 and arm64

func setProject(t *testing.T, path string, p project) {
	t.Helper()
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_RDONLY)
	require.NoError(t, err)
	defer closeFD(fd)
	var a fileAttributes
	require.NoError(t, ioctl(fd, getAttributes, unsafe.Pointer(&a)))
	a.project = p.id
	a.flags &^= xflagProjectInherit
	if p.inherits {
		a.flags |= xflagProjectInherit
	}
	require.NoError(t, ioctl(fd, setAttributes, unsafe.Pointer(&a)))
}

func quotaDirs(t *testing.T) []string {
	t.Helper()
	dirs := filepath.SplitList(os.Getenv(quotaDirsEnv))
	require.NotEmpty(t, dirs, "set %s", quotaDirsEnv)
	return dirs
}

// newProject makes a tree of a project of its own.
func newProject(t *testing.T, dir string, id uint32) string {
	t.Helper()
	root := filepath.Join(dir, fmt.Sprintf("%s-%d", t.Name(), id))
	require.NoError(t, os.Mkdir(root, 0o750))
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(root)) })
	setProject(t, root, project{id: id, inherits: true})
	for i := range 50 {
		write(t, filepath.Join(root, fmt.Sprint(i%5), fmt.Sprint(i)), i*1000)
	}
	require.NoError(t, os.Link(filepath.Join(root, "1", "1"), filepath.Join(root, "2", "link")))
	require.NoError(t, os.Truncate(filepath.Join(root, "3", "3"), 1<<30))
	return root
}

func TestMeasureByProjectQuota(t *testing.T) {
	for i, dir := range quotaDirs(t) {
		root := newProject(t, dir, uint32(100+i))
		var m Measurer
		walked, err := m.Measure(t.Context(), root)
		require.NoError(t, err)
		assert.False(t, walked.ByQuota, "the first is a walk")
		assert.Equal(t, expected(t, root), walked)

		for n := range maxUses {
			write(t, filepath.Join(root, "more", fmt.Sprint(n)), 10_000)
			counted, err := m.Measure(t.Context(), root)
			require.NoError(t, err)
			require.True(t, counted.ByQuota, "%s: %d", dir, n)
			now := expected(t, root)
			assert.Equal(t, now.Bytes, counted.Bytes, dir)
			assert.Equal(t, now.Inodes, counted.Inodes, dir)
		}
		again, err := m.Measure(t.Context(), root)
		require.NoError(t, err)
		assert.False(t, again.ByQuota, "now and then a walk confirms it")
	}
}

// TestProjectThatIsNotTheTree holds that a count that is not the tree's is not taken for it.
func TestProjectThatIsNotTheTree(t *testing.T) {
	for _, dir := range quotaDirs(t) {
		for name, spoil := range map[string]func(root string, id uint32){
			"a file elsewhere": func(_ string, id uint32) {
				file := filepath.Join(dir, "other", "file")
				write(t, file, 10_000)
				setProject(t, file, project{id: id})
			},
			"a file of another project": func(root string, _ uint32) {
				setProject(t, filepath.Join(root, "4", "4"), project{id: 299})
			},
			"a directory that does not hand it on": func(root string, id uint32) {
				setProject(t, filepath.Join(root, "4"), project{id: id})
				write(t, filepath.Join(root, "4", "new"), 10_000)
			},
		} {
			id := uint32(200 + len(name))
			root := newProject(t, dir, id)
			spoil(root, id)
			var m Measurer
			for range 3 {
				used, err := m.Measure(t.Context(), root)
				require.NoError(t, err)
				assert.Equal(t, expected(t, root), used, "%s: %s", dir, name)
			}
		}
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "other")))
	}
}

// TestTreeBelowATreeOfItsProject holds that what is below a directory of the same project is not measured as all of it.
func TestTreeBelowATreeOfItsProject(t *testing.T) {
	for _, dir := range quotaDirs(t) {
		root := newProject(t, dir, 400)
		below := filepath.Join(root, "1")
		fd, err := openAt(unix.AT_FDCWD, below, unix.O_RDONLY)
		require.NoError(t, err)
		assert.Equal(t, project{id: 400, inherits: true}, projectOf(fd))
		closeFD(fd)
		_, _, ok := new(Measurer).countOf(root)
		assert.True(t, ok)
		_, _, ok = new(Measurer).countOf(below)
		assert.False(t, ok)
	}
}

// TestKernelKeepsProjectsApart holds what the use of a count relies on: nothing of another project can be moved or
// linked into a tree.
func TestKernelKeepsProjectsApart(t *testing.T) {
	for _, dir := range quotaDirs(t) {
		root, other := newProject(t, dir, 300), newProject(t, dir, 301)
		file := filepath.Join(other, "1", "1")
		require.ErrorIs(t, os.Rename(file, filepath.Join(root, "moved")), unix.EXDEV)
		require.ErrorIs(t, os.Link(file, filepath.Join(root, "linked")), unix.EXDEV)
	}
}

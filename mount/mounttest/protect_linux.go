package mounttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// protectMachine makes every mount of this namespace read-only but for what tests need to write: a test that goes wrong,
// with code that deletes trees as root, must not be able to reach the machine's files. Devices, /proc and /sys stay as
// they are, since tests act on them.
func protectMachine(machine *mount.Mounter) error {
	here, err := os.Readlink(namespaceLink)
	if err != nil || os.Getenv(envProtected) == here {
		return err
	}
	for _, dir := range writableDirs() {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("binding %q to itself: %w", dir, err)
		}
	}
	if err := enterAgain(); err != nil {
		return err
	}
	//nolint:forbidigo // TestMain has no context, and reading the table does not block.
	table, err := machine.List(context.Background())
	if err != nil {
		return err
	}
	for _, m := range table {
		if isWritable(m.Path) || m.ReadOnly() {
			continue
		}
		if err := makeReadOnly(m.Path); err != nil {
			return fmt.Errorf("making %q read-only: %w", m.Path, err)
		}
	}
	return os.Setenv(envProtected, here)
}

// enterAgain makes the working directory one of the mounts that were just made; it was on the one below.
func enterAgain() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	return os.Chdir(dir)
}

// isWritable reports whether the mount at path stays writable.
func isWritable(path string) bool {
	return slices.Contains(writableDirs(), path) || slices.ContainsFunc([]string{"/dev", "/proc", "/sys"}, func(top string) bool {
		return path == top || strings.HasPrefix(path, top+"/")
	})
}

// makeReadOnly changes the mount at path, not its filesystem. A mount that is hidden by a later one is out of reach.
func makeReadOnly(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0) // which waits for no server
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr)
	if errors.Is(err, unix.EINVAL) {
		return nil // It is hidden, and this is a plain directory of the mount above.
	}
	return err
}

// writableDirs are the temporary directory of the tests, the cache of the go command, for tests that build programs, and
// where the go command has this binary write what it tells of the run.
func writableDirs() []string {
	dirs := append(filepath.SplitList(os.Getenv(envWritable)), os.TempDir())
	if cache := goCache(); cache != "" {
		dirs = append(dirs, cache)
	}
	for _, argument := range os.Args[1:] {
		name, value, _ := strings.Cut(strings.TrimLeft(argument, "-"), "=")
		switch name {
		case "test.testlogfile", "test.coverprofile", "test.cpuprofile", "test.memprofile", "test.blockprofile",
			"test.mutexprofile", "test.trace":
			dirs = append(dirs, filepath.Dir(value))
		case "test.outputdir", "test.gocoverdir", "test.fuzzcachedir":
			dirs = append(dirs, value)
		case "test.fuzz":
			dirs = append(dirs, ".") // A finding is kept in testdata.
		}
	}
	return existing(dirs)
}

func goCache() string {
	if cache := os.Getenv("GOCACHE"); cache != "" {
		return cache
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "go-build")
}

// existing returns the directories that exist, each once, by paths without links, so that they can be told in the table.
func existing(dirs []string) []string {
	var found []string
	for _, dir := range dirs {
		path, err := filepath.Abs(dir)
		if err != nil {
			continue
		}
		if path, err = filepath.EvalSymlinks(path); err == nil && path != "/" {
			found = append(found, path)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// FindLeftovers looks for what is still there under root: mounts, loop devices whose file is or was there, and files.
// It asks the kernel, not the agent.
func FindLeftovers(ctx context.Context, root string) (Leftovers, error) {
	left := Leftovers{Mounts: []string{}, LoopDevices: []string{}, Files: []string{}}
	mounts, err := mount.New(mount.Options{}).List(ctx)
	if err != nil {
		return left, fmt.Errorf("look for mounts that are left: %w", err)
	}
	for _, m := range mounts {
		if isUnder(m.Path, root) {
			left.Mounts = append(left.Mounts, m.Path)
		}
	}
	devices, err := loopDevicesOf(root)
	if err != nil {
		return left, err
	}
	files, _, err := walk(root)
	left.LoopDevices = append(left.LoopDevices, devices...)
	left.Files = append(left.Files, files...)
	return left, err
}

// loopDevicesOf returns the loop devices whose file is, or was, under root. It reads sysfs, as every user may; to open
// the devices takes root.
func loopDevicesOf(root string) ([]string, error) {
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, fmt.Errorf("look for loop devices that are left: %w", err)
	}
	var found []string
	for _, name := range names {
		file, err := os.ReadFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
			continue // detached since it was listed
		case err != nil:
			return nil, fmt.Errorf("look for loop devices that are left: %w", err)
		case isUnder(strings.TrimSuffix(string(file), "\n"), root):
			found = append(found, "/dev/"+strings.Split(name, "/")[3])
		}
	}
	return found, nil
}

// removeEmptyDirs removes the directories below root by rmdir alone: one that holds a file or a mount stays, and is an
// error.
func removeEmptyDirs(root string) error {
	_, dirs, err := walk(root)
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		if err := removeDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// removeDir removes an empty directory. One that is gone is no error.
func removeDir(dir string) error {
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the directory %s: %w", dir, err)
	}
	return nil
}

// walk returns what is below root: the directories, each before what it holds, and everything else.
func walk(root string) (files, dirs []string, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist), path == root && err == nil:
			return nil
		case err != nil:
			return fmt.Errorf("look for files that are left: %w", err)
		case entry.IsDir():
			dirs = append(dirs, path)
		default:
			files = append(files, path)
		}
		return nil
	})
	return files, dirs, err
}

// isUnder reports whether path is below root; root itself may have been a mount point before.
func isUnder(path, root string) bool { return strings.HasPrefix(path, root+"/") }

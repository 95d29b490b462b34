package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// usersOfAPod is how many users and groups a pod with a user namespace has. An agent for strangers' pods gives each pod a range of its
// own; this example gives all the same.
const usersOfAPod = 1 << 16

// mapMounts makes an id-mapped mount of each volume of a container in a user namespace, so that what root owns in the volume belongs to
// root in the container. It returns the mounts with these as their sources. runc does this itself from 1.2 on, for mounts with uidMappings
// and gidMappings; Debian 12 has 1.1. It needs Linux 5.12, and a filesystem that can be id-mapped: tmpfs can from 6.3 on.
func (r *containerRuntime) mapMounts(id string, volumes volumemanager.OCIVolumes) ([]volumemanager.OCIMount, error) {
	if len(volumes.Devices) > 0 {
		return nil, fmt.Errorf("device %q: a pod with hostUsers: false cannot have block devices: %w", volumes.Devices[0].Path, volume.ErrUnsupported)
	}
	mapping := fmt.Sprintf("0:%d:%d", r.firstUser, usersOfAPod)
	users, err := mount.GetUsernsFD(mapping, mapping)
	if err != nil {
		return nil, err
	}
	defer users.Close()
	mapped := append([]volumemanager.OCIMount{}, volumes.Mounts...)
	for i := range mapped {
		target := filepath.Join(r.mounts, id, strconv.Itoa(i))
		if err := mountMapped(mapped[i], target, users); err != nil {
			return nil, fmt.Errorf("id-mapped mount of %q for %q: %w", mapped[i].Source, mapped[i].Destination, err)
		}
		// It is read-only already where it is to be. In a user namespace runc 1.1 cannot make a mount with nosuid read-only.
		mapped[i].Source, mapped[i].Options = target, mapped[i].Options[:2]
	}
	return mapped, nil
}

// mountMapped mounts the source of m, with all that is mounted in it, at target, where users is the user namespace that maps its owners.
func mountMapped(m volumemanager.OCIMount, target string, users *os.File) error {
	if err := makeTarget(m.Source, target); err != nil {
		return err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer func() { _ = unix.Close(tree) }() // it is mounted, or goes with this
	mapping := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &mapping)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("this kernel cannot map the owners of this filesystem: %w: %w", err, volume.ErrUnsupported)
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	switch {
	case err != nil:
	case m.Options[2] == "ro":
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &readOnly)
	case m.Options[2] == "rro":
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &readOnly)
	}
	if err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// makeTarget makes a directory, or a file where source is none.
func makeTarget(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(target, 0o700)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	return os.WriteFile(target, nil, 0o600)
}

// withOwnRoot gives the root filesystem of a container in a user namespace to root there. It copies what it changes; containerd 2 can mount
// the layers id-mapped instead.
func (r *containerRuntime) withOwnRoot(pod *v1.Pod) client.NewContainerOpts {
	return func(ctx context.Context, c *client.Client, container *containers.Container) error {
		if !hasUserNamespace(pod) {
			return nil
		}
		mounts, err := c.SnapshotService("").Mounts(ctx, container.SnapshotKey)
		if err != nil {
			return err
		}
		root := filepath.Join(r.mounts, container.ID, "root")
		if err := errors.Join(os.MkdirAll(root, 0o700), mount.All(mounts, root)); err != nil {
			return err
		}
		err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var stat unix.Stat_t
			if err := unix.Lstat(path, &stat); err != nil {
				return err
			}
			return os.Lchown(path, int(stat.Uid+r.firstUser), int(stat.Gid+r.firstUser))
		})
		return errors.Join(err, unmountAndRemove(root))
	}
}

// unmount takes away the mounts that were made for a container.
func (r *containerRuntime) unmount(id string) error {
	dir := filepath.Join(r.mounts, id)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		err = errors.Join(err, unmountAndRemove(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(err, os.Remove(dir))
}

// unmountAndRemove unmounts what is mounted at path, and removes the empty directory or file beneath.
func unmountAndRemove(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) { // nothing is mounted there any more
			return os.Remove(path)
		} else if err != nil {
			return fmt.Errorf("unmount %q: %w", path, err)
		}
	}
}

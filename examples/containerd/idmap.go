package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	containerdmount "github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volumemanager"
)

// usersOfAPod is how many users and groups a pod with a user namespace has.
const usersOfAPod = 1 << 16

// userNamespaces gives the volume manager the id mappings of pods. This example has one range of ids for all pods. An agent that runs
// pods of users who do not trust each other must give each pod a range of its own.
type userNamespaces struct{ firstUser uint32 }

var _ volumemanager.UserNamespaces = userNamespaces{}

// IDMappings implements volumemanager.UserNamespaces.
func (n userNamespaces) IDMappings(context.Context, *v1.Pod) (mount.IDMappings, error) {
	ranges := []mount.IDMapping{{HostID: n.firstUser, Size: usersOfAPod}}
	return mount.IDMappings{UIDs: ranges, GIDs: ranges}, nil
}

// mountMapped makes the id-mapped mounts of a container for a runc before 1.2, which cannot; Debian 12 has 1.1. It returns the
// container's mounts with these as their sources. Read-only ones are read-only already: in a user namespace, runc 1.1 cannot make a
// nosuid mount read-only.
func (r *containerRuntime) mountMapped(ctx context.Context, id string, volumes volumemanager.ContainerVolumes) (volumemanager.ContainerVolumes, error) {
	mounts := slices.Clone(volumes.Mounts)
	for i := range mounts {
		m := &mounts[i]
		request := mount.Request{
			Source: m.Source, Target: filepath.Join(r.mounts, id, strconv.Itoa(i)), Options: []string{"rbind"}, IDMappings: m.IDMappings,
		}
		if m.ReadOnly {
			request.Options = append(request.Options, "ro") // as each option of an rbind, for the mounts beneath too
		}
		if err := r.mounter.Mount(ctx, request); err != nil {
			return volumes, fmt.Errorf("volume %q: %w", m.Name, err)
		}
		m.Source, m.IDMappings, m.ReadOnly, m.RecursiveReadOnly = request.Target, mount.IDMappings{}, false, false
	}
	volumes.Mounts = mounts
	return volumes, nil
}

// withOwnRoot makes the namespace's root the owner of the root filesystem of a container in a user namespace. It copies every file that
// it changes. containerd 2 can mount the layers id-mapped instead.
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
		if err := errors.Join(os.MkdirAll(root, 0o700), containerdmount.All(mounts, root)); err != nil {
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

// unmount removes the mounts that mountMapped made for a container.
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

// unmountAndRemove unmounts path, and removes the mount point, an empty directory or file.
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

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
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volumemanager"
)

// containerRuntime runs containers with containerd. containerd has the only record of them, which a new agent reads.
type containerRuntime struct {
	client     *client.Client
	mounter    *mount.Mounter
	namespace  string
	logs       string // the directory of the output of containers
	mounts     string // the directory of the mounts that mountMapped makes
	firstUser  uint32
	mapsOwners bool // runc makes id-mapped mounts itself
}

// newRuntime returns a client of containerd. It connects later if containerd does not run yet.
func newRuntime(o options, mounter *mount.Mounter) (*containerRuntime, error) {
	r := &containerRuntime{
		mounter:   mounter,
		namespace: o.namespace, logs: filepath.Join(o.root, "logs"), mounts: filepath.Join(o.run, "containers"), firstUser: uint32(o.firstUser),
	}
	var err error
	r.client, err = client.New(o.containerd, client.WithDefaultNamespace(o.namespace), client.WithDefaultRuntime("io.containerd.runc.v2"))
	return r, errors.Join(err, os.MkdirAll(r.logs, 0o700), os.MkdirAll(r.mounts, 0o700))
}

// containerID is a container's name in containerd, which allows 76 characters.
func containerID(pod *v1.Pod, c *v1.Container) string { return string(pod.UID) + "-" + c.Name }

// containerStart has what a container needs to start.
type containerStart struct {
	pod       *v1.Pod
	container *v1.Container
	volumes   volumemanager.ContainerVolumes
	groups    []int64 // the supplemental groups that the volumes need
}

// find returns the task of a container, which runs or has ended. It is nil if the container must be started. If a killed agent created
// a task and did not start it, find starts that task. So no container starts twice.
func (r *containerRuntime) find(ctx context.Context, id string) (client.Task, error) {
	container, err := r.client.LoadContainer(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, r.failed(id, err)
	}
	task, err := container.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, r.failed(id, err)
	}
	status, err := task.Status(ctx)
	if err == nil && status.Status == client.Created {
		err = task.Start(ctx)
	}
	return task, r.failed(id, err)
}

// start starts a container without a task in containerd.
func (r *containerRuntime) start(ctx context.Context, s containerStart) (client.Task, error) {
	id := containerID(s.pod, s.container)
	if err := r.remove(ctx, id); err != nil { // a killed agent may have left a part of it
		return nil, err
	}
	container, err := r.create(ctx, s)
	if err != nil {
		return nil, r.failed(id, err)
	}
	// The shim writes to the file itself. A pipe to the agent would break when the agent ends.
	task, err := container.NewTask(ctx, cio.LogFile(filepath.Join(r.logs, id)))
	if err == nil {
		err = task.Start(ctx)
	}
	return task, r.failed(id, err)
}

// wait returns the exit code of a task. If containerd ends, that is an error and says nothing about the container.
func (r *containerRuntime) wait(ctx context.Context, task client.Task) (uint32, error) {
	ended, err := task.Wait(ctx)
	if err != nil {
		return 0, r.failed(task.ID(), err)
	}
	code, _, err := (<-ended).Result()
	return code, r.failed(task.ID(), err)
}

// stop asks the processes of a container to end, kills them after grace, and removes the container.
func (r *containerRuntime) stop(ctx context.Context, id string, grace time.Duration) error {
	task, err := r.find(ctx, id)
	if err != nil {
		return err
	}
	if task != nil {
		bounded, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		if err := task.Kill(ctx, syscall.SIGTERM); err == nil {
			_, _ = r.wait(bounded, task) // remove checks whether the container has ended
		}
	}
	return r.remove(ctx, id)
}

// remove removes a container. It returns nil only if no process of the container is alive.
func (r *containerRuntime) remove(ctx context.Context, id string) error {
	container, err := r.client.LoadContainer(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return r.failed(id, err)
	}
	if err == nil {
		task, err := container.Task(ctx, nil)
		if err == nil {
			_, err = task.Delete(ctx, client.WithProcessKill)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return r.failed(id, err)
		}
	}
	// When a shim was killed, containerd knows no task any more, and yet the processes may be alive.
	if err := r.killLeft(id); err != nil {
		return err
	}
	if container != nil {
		if err := container.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
			return r.failed(id, err)
		}
	}
	if err := r.client.SnapshotService("").Remove(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return r.failed(id, err)
	}
	return r.unmount(id)
}

// killLeft kills the processes in a container's cgroup. It fails as long as one of them exists.
func (r *containerRuntime) killLeft(id string) error {
	left, err := processesIn("/" + r.namespace + "/" + id)
	for _, pid := range left {
		err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
	}
	if len(left) > 0 || err != nil {
		return fmt.Errorf("container %q: processes %v are alive without a shim, and were killed: %w", id, left, errors.Join(err, syscall.EBUSY))
	}
	return nil
}

// processesIn returns the processes of a cgroup. Its name is the last element of the path in /proc/PID/cgroup.
func processesIn(cgroup string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	var found []int
	for _, entry := range entries {
		pid, notAProcess := strconv.Atoi(entry.Name())
		if notAProcess != nil {
			continue
		}
		text, readErr := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) && !errors.Is(readErr, syscall.ESRCH) {
			err = errors.Join(err, readErr)
		}
		if slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool { return strings.HasSuffix(line, cgroup) }) {
			found = append(found, pid)
		}
	}
	return found, err
}

// removeStrangers removes the containers of all other pods. After that the manager may unmount their volumes: no process uses them.
func (r *containerRuntime) removeStrangers(ctx context.Context, pods []*v1.Pod) error {
	known := make(map[string]bool)
	for _, pod := range pods {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			known[containerID(pod, &c)] = true
		}
	}
	containers, err := r.client.Containers(ctx)
	if err != nil {
		return r.failed("of any pod", err)
	}
	for _, container := range containers {
		if !known[container.ID()] {
			err = errors.Join(err, r.remove(ctx, container.ID()))
		}
	}
	return err
}

// failed adds the container to an error of containerd.
func (r *containerRuntime) failed(id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errdefs.IsUnavailable(err):
		return fmt.Errorf("container %q: containerd does not answer: it runs on, if it runs, and keeps its volumes; start containerd: %w", id, err)
	default:
		return fmt.Errorf("container %q: %w", id, err)
	}
}

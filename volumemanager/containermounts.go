package volumemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/containers"
	"github.com/volumekit/volumekit/volumemanager/internal/mounter"
	"github.com/volumekit/volumekit/volumemanager/internal/populator"
	"github.com/volumekit/volumekit/volumemanager/internal/sentinel"
)

// The sentinels of [Manager.ContainerMounts].
var (
	// ErrUnknownContainer matches the error for a container that the pod does not have.
	ErrUnknownContainer = errors.New("unknown container")
	// ErrVolumeMode matches the error for a container that mounts a block device, or that wants a volume with a filesystem
	// as a device.
	ErrVolumeMode = errors.New("the volume is of the other mode")
)

// ContainerVolumes is what a container runtime needs to give a container its volumes. [ContainerVolumes.OCI] and
// [ContainerVolumes.CRI] return it in the words of the two specifications.
type ContainerVolumes struct {
	// Mounts are to be made in this order: one that lies in another comes after it.
	Mounts []ContainerMount
	// Devices are the block volumes, by their targets.
	Devices []ContainerDevice
}

// ContainerMount is one bind mount in a container, with all mounts beneath its source.
type ContainerMount struct {
	// Name is the volume's name in the pod's spec.
	Name string
	// Source is the absolute path on the host: of a directory, or of a file, a socket and the like. Where it leads to no
	// workload can change, a sub-path of a volume included; but that of a hostPath volume is the one in the pod's spec, in
	// which there may be links.
	Source string
	// Target is the absolute, clean path in the container. A link in the container's own filesystem is the runtime's to
	// deal with.
	Target string
	// ReadOnly is true when the container, the pod's reference to the claim, or the volume says so.
	ReadOnly bool
	// RecursiveReadOnly says that the mounts beneath must be read-only, too. It comes with ReadOnly only.
	RecursiveReadOnly bool
	// Propagation is None, HostToContainer or Bidirectional; never empty.
	Propagation v1.MountPropagationMode
	// Relabel says that the content is to be given the SELinux label of the container, where there is SELinux.
	Relabel bool
	// IDMappings are the ranges with which the runtime must map the owners in the mount and in all mounts beneath. It is zero
	// unless the pod has a user namespace, see [Options].UserNamespaces.
	IDMappings mount.IDMappings
}

// ContainerDevice is one block device in a container.
type ContainerDevice struct {
	// Name is the volume's name in the pod's spec.
	Name string
	// Source is the absolute path of the device's node on the host. It is that of this pod alone, and shows the same
	// device whatever becomes of the names in /dev.
	Source string
	// Target is the absolute, clean path in the container.
	Target string
	// Permissions are those of the device cgroup: "rwm", or "rm" when the device is only to be read: the pod
	// asked for that, or all access modes of the volume are ReadOnlyMany. Without that rule the container can write to it.
	Permissions string
	// Major and Minor are the device's number.
	Major, Minor uint32
}

// ContainerMounts returns what a runtime needs to start a container of pod: of any kind, init and ephemeral ones too. pod
// tells which pod is meant; what counts is what the last AddPod or UpdatePod said. It waits for no volume: call it after
// [Manager.WaitForAttachAndMount].
//
// A sub-path (subPath, subPathExpr) is opened beneath the volume's root without following a link out of it, and that very
// file or directory is bound at a place of the pod's where no workload can write. One that is missing is made, with the
// mode and group of the volume's root; a link to what is missing is refused ([safepath.ErrDangling]). A call for a container that is started again returns the same sources; a sub-path
// that the workload has replaced meanwhile is bound anew. [Manager.ReleaseContainer] undoes it, and whatever takes the
// volume from the pod does so before.
//
// A subPath that leads to where it begins (".") is the whole volume. The variables of a subPathExpr are those that
// [Options].Environment tells; without it, those that the pod itself does: values, and fields of the pod. Another one, and
// one that is empty, is a [*VariableError].
//
// When a volume of the container is not set up, or is being taken away, the error is a [*volume.NotReadyError]. If another program
// has mounted over its path, or has moved or unmounted it, the error matches [mount.ErrForeign] or [mount.ErrNotMounted]. Others
// match [ErrUnknownContainer], [ErrVolumeMode], [volume.ErrInvalid] for what the pod must not ask for,
// [volume.ErrUnsupported] for a recursively read-only mount that [Options] does not allow, or what package safepath
// returns for a sub-path; they hold paths of the host: what may be shown to the pod's owner is safepath.Public.
//
// For a pod with hostUsers: false each mount has the ranges that [Options].UserNamespaces returns. Before, the manager makes that
// mount once where no path leads to it. If that fails, or if the container has a device, the error is an [*IDMappingError].
//
// ctx bounds the call, or [Options].WaitTimeout if it has no deadline; a call on a volume that hangs is abandoned then,
// and the error matches [volume.ErrUncertain]. When ContainerMounts fails, the sub-paths that it has bound stay until the next
// call, ReleaseContainer or the end of the pod.
func (m *Manager) ContainerMounts(ctx context.Context, pod *v1.Pod, container string) (ContainerVolumes, error) {
	if err := populator.Validate(pod); err != nil {
		return ContainerVolumes{}, err
	}
	entry := m.populator.Pod(pod.UID)
	if entry == nil {
		return ContainerVolumes{}, populator.Unknown(pod)
	}
	c, ok := containers.Find(entry.Pod, container)
	if !ok {
		return ContainerVolumes{}, fmt.Errorf("%w: pod %q has no container %q: %w", ErrUnknownContainer, store.NameOf(pod), container, volume.ErrInvalid)
	}
	ctx, cancel := m.options.withWaitTimeout(ctx)
	defer cancel()
	ask := &containerRequest{manager: m, entry: entry, container: c}
	volumes, err := ask.answer(ctx)
	if err != nil {
		return ContainerVolumes{}, fmt.Errorf("container %q of pod %q: %w", container, store.NameOf(pod), err)
	}
	return volumes, nil
}

// ContainerEnvironment tells the environment of a container, as the program that starts it has put it together: from config
// maps, secrets, resources and services too, which the manager does not read.
type ContainerEnvironment interface {
	// ContainerEnvironment returns the value of every variable of a container, as its processes get it. It is asked by
	// [Manager.ContainerMounts], once in a call and only if the container has a subPathExpr; what it returns is not kept. pod and
	// container must not be changed. It is called in the goroutine of the caller of ContainerMounts, without a lock.
	ContainerEnvironment(ctx context.Context, pod *v1.Pod, container *v1.Container) (map[string]string, error)
}

// VariableError says that a subPathExpr refers to a variable of the container's environment whose value is not known here.
type VariableError struct {
	// Variable is the name of the variable.
	Variable string
	// Err is why its value is not known. It matches volume.ErrUnsupported when it comes from where only an orchestrator can
	// look, volume.ErrTransient when the pod has no such value yet, and else volume.ErrInvalid.
	Err error
}

// Error names the variable.
func (e *VariableError) Error() string {
	return fmt.Sprintf("variable %q of subPathExpr: %v", e.Variable, e.Err)
}

// Unwrap returns the cause.
func (e *VariableError) Unwrap() error { return e.Err }

// containerRequest is one call of ContainerMounts.
type containerRequest struct {
	manager   *Manager
	entry     *populator.Pod
	container *v1.Container
	rows      map[string]cache.MountedVolume // by outer name
	variables *containers.Environment        // nil until a subPathExpr needs them
	mappings  mount.IDMappings               // zero unless the pod has a user namespace
}

func (a *containerRequest) podName() volume.UniquePodName {
	return volume.GetUniquePodName(a.entry.Pod)
}

func (a *containerRequest) answer(ctx context.Context) (ContainerVolumes, error) {
	var volumes ContainerVolumes
	if err := a.manager.root.Check(ctx); err != nil {
		return volumes, err
	}
	if err := a.readRows(); err != nil {
		return volumes, err
	}
	if err := a.checkModes(); err != nil {
		return volumes, err
	}
	if err := a.readIDMappings(ctx); err != nil {
		return volumes, err
	}
	for i := range a.container.VolumeMounts {
		made, err := a.mount(ctx, i)
		if err != nil {
			return volumes, fmt.Errorf("volume %q: %w", a.container.VolumeMounts[i].Name, err)
		}
		volumes.Mounts = append(volumes.Mounts, made)
	}
	for _, d := range a.container.VolumeDevices {
		made, err := a.device(d)
		if err == nil {
			err = a.checkDevice(made)
		}
		if err != nil {
			return volumes, fmt.Errorf("volume %q: %w", d.Name, err)
		}
		volumes.Devices = append(volumes.Devices, made)
	}
	volumes.order()
	return volumes, nil
}

// order sorts mounts: nested ones come later. It also keeps each source from being relabelled more than once.
func (v *ContainerVolumes) order() {
	slices.SortStableFunc(v.Mounts, func(a, b ContainerMount) int {
		return cmp.Compare(strings.Count(a.Target, "/"), strings.Count(b.Target, "/"))
	})
	slices.SortFunc(v.Devices, func(a, b ContainerDevice) int { return cmp.Compare(a.Target, b.Target) })
	labelled := make(map[string]bool)
	for i := range v.Mounts {
		if m := &v.Mounts[i]; m.Relabel {
			m.Relabel = !labelled[m.Source]
			labelled[m.Source] = true
		}
	}
}

// readRows reads what is known of the volumes of the container.
func (a *containerRequest) readRows() error {
	a.rows = make(map[string]cache.MountedVolume)
	missing := make(map[string]bool)
	for _, name := range a.names() {
		row, ok := a.row(name)
		a.rows[name] = row
		if !ok {
			missing[name] = true
		}
	}
	if len(missing) > 0 {
		return a.notReady(missing, nil)
	}
	return nil
}

// names returns the outer names of the volumes that the container uses.
func (a *containerRequest) names() []string {
	var names []string
	for _, m := range a.container.VolumeMounts {
		names = append(names, m.Name)
	}
	for _, d := range a.container.VolumeDevices {
		names = append(names, d.Name)
	}
	return names
}

// row returns what is known of a volume, and false when it is not set up, or is being taken away.
func (a *containerRequest) row(outer string) (cache.MountedVolume, bool) {
	return a.manager.view.setUpOf(a.entry.Volume(outer).Name, a.podName())
}

func (a *containerRequest) notReady(missing map[string]bool, cause error) error {
	return notReady(a.entry.Pod, awaited{state: "ready", missing: func() []VolumeStatus {
		return slices.DeleteFunc(a.manager.view.statusOfPod(a.entry.Pod.UID), func(s VolumeStatus) bool { return !missing[s.OuterName] })
	}}, cause)
}

func (a *containerRequest) checkModes() error {
	for _, m := range a.container.VolumeMounts {
		if volume.IsBlock(a.rows[m.Name].VolumeSpec) {
			return fmt.Errorf("volume %q is a block device and cannot be mounted: use volumeDevices: %w: %w", m.Name, ErrVolumeMode, volume.ErrInvalid)
		}
	}
	for _, d := range a.container.VolumeDevices {
		if !volume.IsBlock(a.rows[d.Name].VolumeSpec) {
			return fmt.Errorf("volume %q has a filesystem and is no device: use volumeMounts: %w: %w", d.Name, ErrVolumeMode, volume.ErrInvalid)
		}
	}
	return nil
}

// mount returns one mount of the container, by its index in the spec.
func (a *containerRequest) mount(ctx context.Context, index int) (ContainerMount, error) {
	spec := &a.container.VolumeMounts[index]
	row := a.rows[spec.Name]
	info := infoOf(row)
	made := ContainerMount{
		Name: spec.Name, Source: info.Path, Target: path.Clean(spec.MountPath),
		ReadOnly: spec.ReadOnly || info.ReadOnly || a.entry.Volume(spec.Name).ReadOnly,
		Relabel:  mayRelabel(row),
	}
	if !filepath.IsAbs(info.Path) {
		return made, fmt.Errorf("plugin %q says that it is at %q, which is not an absolute path: %w", row.PluginName, info.Path, operationexecutor.ErrContractViolation)
	}
	err := a.manager.watch.CheckVisible(ctx, info.Path)
	if err != nil {
		return made, err
	}
	if made.Propagation, err = containers.Propagation(a.container, spec); err != nil {
		return made, err
	}
	if made.RecursiveReadOnly, err = a.recursiveReadOnly(spec); err != nil {
		return made, err
	}
	sub, err := a.subPath(ctx, spec)
	if err == nil && sub != "" {
		made.Source, err = a.bindSubPath(ctx, index, made, sub)
	}
	if err != nil {
		return made, err
	}
	return a.mapped(ctx, made)
}

// mayRelabel reports whether the content may be given another label: it is the node's own, the plugin says that it can be
// labelled, it is not read-only, and it has no label for all of it already.
func mayRelabel(row cache.MountedVolume) bool {
	if row.Mounter == nil || row.SELinuxMountContext != "" {
		return false
	}
	attributes := row.Mounter.GetAttributes()
	return attributes.Managed && attributes.SupportsSELinux && !attributes.ReadOnly
}

func (a *containerRequest) recursiveReadOnly(spec *v1.VolumeMount) (bool, error) {
	switch containers.RecursiveReadOnly(spec) {
	case v1.RecursiveReadOnlyIfPossible:
		return a.manager.options.RecursiveReadOnly, nil
	case v1.RecursiveReadOnlyEnabled:
		if !a.manager.options.RecursiveReadOnly {
			return false, fmt.Errorf("recursiveReadOnly Enabled: the runtime of this node cannot do it (Options.RecursiveReadOnly): %w", volume.ErrUnsupported)
		}
		return true, nil
	default:
		return false, nil
	}
}

// subPath returns the sub-path of a mount, empty when it has none. An expression never leads to the whole volume: it is
// there to keep those apart who share one.
func (a *containerRequest) subPath(ctx context.Context, spec *v1.VolumeMount) (string, error) {
	switch {
	case spec.SubPathExpr != "":
	case containers.IsWholeVolume(spec.SubPath):
		return "", nil
	default:
		return spec.SubPath, nil
	}
	environment, err := a.environment(ctx)
	if err != nil {
		return "", err
	}
	sub, unknown, err := environment.ExpandSubPath(spec.SubPathExpr)
	if err != nil {
		return "", &VariableError{Variable: unknown, Err: err}
	}
	if _, err := safepath.CleanSubpath(sub); err != nil {
		return "", fmt.Errorf("subPathExpr %q: %w", spec.SubPathExpr, sentinel.OfPath(err))
	}
	return sub, nil
}

// environment returns the variables of the container: those that the orchestrator tells, or else those that the pod does.
func (a *containerRequest) environment(ctx context.Context) (containers.Environment, error) {
	if a.variables != nil {
		return *a.variables, nil
	}
	node := types.NodeName(cmp.Or(a.entry.Pod.Spec.NodeName, string(a.manager.node())))
	found := containers.EnvironmentOf(a.entry.Pod, node, a.container)
	if teller := a.manager.options.Environment; teller != nil {
		values, err := teller.ContainerEnvironment(ctx, a.entry.Pod, a.container)
		if err != nil {
			return found, fmt.Errorf("the environment of the container, for its subPathExpr: %w", err)
		}
		found = containers.Known(values)
	}
	a.variables = &found
	return found, nil
}

// propagations are the modes as safepath has them.
var propagations = map[v1.MountPropagationMode]string{
	v1.MountPropagationNone:            safepath.Private,
	v1.MountPropagationHostToContainer: safepath.Slave,
	v1.MountPropagationBidirectional:   safepath.Shared,
}

// bindSubPath binds a part of the volume and returns where.
func (a *containerRequest) bindSubPath(ctx context.Context, index int, made ContainerMount, sub string) (string, error) {
	uid := a.entry.Pod.UID
	row := a.rows[made.Name]
	return a.manager.subpaths.Prepare(ctx, uid, safepath.Subpath{
		Owner:            safepath.Owner{VolumeName: containers.SubpathName(row.PluginName, row.InnerVolumeSpecName), ContainerName: a.container.Name},
		VolumePath:       made.Source,
		FollowVolumePath: !a.isOurs(made.Source),
		Apart:            a.keptApart(row, made.Source),
		Path:             sub,
		FollowInside:     true,
		VolumeMountIndex: index,
		BindOptions: safepath.BindOptions{
			Kinds: safepath.AnyKind, ReadOnly: made.ReadOnly, Propagation: propagations[made.Propagation],
		},
	}, func() error {
		if now, ok := a.row(made.Name); !ok || now.VolumeName != row.VolumeName || a.manager.populator.Pod(uid) == nil {
			return a.notReady(map[string]bool{made.Name: true}, containers.ErrTakenAway)
		}
		return nil
	})
}

// isOurs reports whether the plugin has made a path for the pod. Any other path is a directory of the host, chosen by the
// author of the pod or of the PersistentVolume.
func (a *containerRequest) isOurs(dir string) bool {
	return strings.HasPrefix(dir, a.manager.subpaths.PodDir(a.entry.Pod.UID)+string(filepath.Separator))
}

// keptApart returns what a volume that is a path of the host must be apart from. The check of its set-up is no proof: links on
// the way may have changed since.
func (a *containerRequest) keptApart(row cache.MountedVolume, dir string) []string {
	if a.isOurs(dir) {
		return nil
	}
	apart := []string{filepath.Dir(a.manager.plugins.Host().GetPodsDir())}
	return append(apart, mounter.KeptApart(row.Mounter)...)
}

// device returns one device of the container. What is bound for the pod is named after it, in the volume's map path.
func (a *containerRequest) device(spec v1.VolumeDevice) (ContainerDevice, error) {
	row := a.rows[spec.Name]
	made := ContainerDevice{
		Name: spec.Name, Source: filepath.Join(row.DeviceMountPath, string(a.entry.Pod.UID)), Target: path.Clean(spec.DevicePath),
		Permissions: "rwm",
	}
	if row.VolumeSpec.ReadOnly || a.entry.Volume(spec.Name).ReadOnly || volume.IsReadOnlyMany(row.VolumeSpec) {
		made.Permissions = "rm"
	}
	var err error
	made.Major, made.Minor, err = containers.DeviceNumber(made.Source)
	return made, err
}

// ReleaseContainer undoes [Manager.ContainerMounts] when a container has ended, or was never started: it unmounts what was
// bound for the container's sub-paths, and removes the directories of the binds by rmdir. It finds them on disk. It
// therefore also works after a restart, and for a pod that was removed or never added; if there is nothing it succeeds. A
// container that is started again need not be released before. RemovePod releases all containers of its pod.
//
// The path that a runtime was given must not be in use on the host any more; otherwise the error matches unix.EBUSY.
// ReleaseContainer leaves a foreign mount at that path alone, and returns an error that matches mount.ErrForeign. It
// releases everything else in any case, and may be called again. It does not touch the content of the volume. ctx bounds the
// call.
func (m *Manager) ReleaseContainer(ctx context.Context, uid types.UID, container string) error {
	for field, name := range map[string]string{"UID of the pod": string(uid), "name of the container": container} {
		if err := volume.CheckPathElement(name); err != nil {
			return fmt.Errorf("container to be released: %s: %w", field, err)
		}
	}
	if err := m.subpaths.Release(ctx, uid, container); err != nil {
		return fmt.Errorf("releasing container %q of the pod with UID %q: %w", container, uid, err)
	}
	return nil
}

package manifest

import (
	"errors"
	"fmt"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/volumekit/volumekit/examples/internal/show"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Check returns a [show.InputError] with every fault of m, before anything is created. Each error says what to change.
func (m *Set) Check(plugins *volume.VolumePluginMgr) error {
	c := &checker{Set: m, plugins: plugins, uids: make(map[types.UID]bool)}
	c.objects()
	for _, pv := range m.Volumes {
		c.persistentVolume(pv)
	}
	for _, claim := range m.Claims {
		c.claim(claim)
	}
	for _, pod := range m.Pods {
		c.pod(pod)
	}
	return show.BadInput(c.errs...)
}

// checker collects the faults of manifests.
type checker struct {
	*Set
	plugins *volume.VolumePluginMgr
	uids    map[types.UID]bool // of pods
	errs    []error
}

func (c *checker) refuse(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

// objects checks the names of all objects.
func (c *checker) objects() {
	seen := make(map[store.Key]bool)
	for _, object := range c.Objects() {
		key, _, err := store.Validate(object)
		switch {
		case err != nil:
			c.refuse("%w", err)
		case seen[key]:
			c.refuse("%s is there twice: give one of them another name", key)
		}
		seen[key] = true
	}
}

func (c *checker) persistentVolume(pv *v1.PersistentVolume) {
	c.hostPath(fmt.Sprintf("PersistentVolume %q", pv.Name), pv.Spec.HostPath)
	if _, err := c.plugins.FindPersistentPluginBySpec(volume.NewSpecFromPersistentVolume(pv, false)); err != nil {
		c.refuse("PersistentVolume %q: %w%s", pv.Name, err, oneSource(err))
	}
}

// oneSource says what to do if no plugin supports a volume; if several do, the error itself says so.
func oneSource(err error) string {
	if errors.Is(err, volume.ErrMultiplePlugins) {
		return ""
	}
	return ": give the volume a source that one of them serves"
}

// claim checks that a claim can be bound to a volume, or can get a new one.
func (c *checker) claim(claim *v1.PersistentVolumeClaim) {
	name := claim.Namespace + "/" + claim.Name
	if len(claim.Spec.AccessModes) == 0 {
		c.refuse("claim %q has no access mode: set spec.accessModes, such as [ReadWriteOnce]", name)
	}
	if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == v1.PersistentVolumeBlock {
		c.refuse("claim %q asks for a raw block device, which this example does not show: set spec.volumeMode to Filesystem", name)
	}
	if claim.Spec.Resources.Requests.Storage().Sign() <= 0 {
		c.refuse("claim %q asks for no storage: set spec.resources.requests.storage, such as 64Mi", name)
		return // a provisioner would repeat the error
	}
	c.claimSource(claim, name)
}

// claimSource checks the source of a claim's volume.
func (c *checker) claimSource(claim *v1.PersistentVolumeClaim, name string) {
	className := c.className(claim)
	switch {
	case claim.Spec.VolumeName != "":
		if named(c.Volumes, claim.Spec.VolumeName) == nil {
			c.refuse("claim %q names the volume %q, which is not in the manifests: add that PersistentVolume, "+
				"or correct spec.volumeName", name, claim.Spec.VolumeName)
		}
	case c.hasVolumeOf(className): // the controller knows whether one of them fits
	case className == "":
		c.refuse("claim %q names no volume and no class: set spec.storageClassName to a StorageClass or spec.volumeName "+
			"to a PersistentVolume, and add that to the manifests", name)
	case named(c.Classes, className) == nil:
		c.refuse("claim %q asks for class %q, which is not in the manifests: add that StorageClass, "+
			"or correct spec.storageClassName", name, className)
	default:
		c.provisioner(claim, named(c.Classes, className), name)
	}
}

// provisioner checks that the plugin of class can create a volume for claim.
func (c *checker) provisioner(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, name string) {
	plugin, err := c.plugins.FindProvisionablePluginByName(class.Provisioner)
	if err != nil {
		c.refuse("class %q of claim %q: %w: set provisioner to one of the plugins that provision", class.Name, name, err)
		return
	}
	_, err = plugin.NewProvisioner(volume.VolumeOptions{
		PVName: claim.Name, PVC: claim, Parameters: class.Parameters, MountOptions: class.MountOptions,
	})
	if err != nil {
		c.refuse("claim %q of class %q: %w", name, class.Name, err)
	}
}

// hasVolumeOf reports whether a PersistentVolume of a class is in the manifests.
func (c *checker) hasVolumeOf(className string) bool {
	for _, pv := range c.Volumes {
		if pv.Spec.StorageClassName == className {
			return true
		}
	}
	return false
}

func (c *checker) pod(pod *v1.Pod) {
	switch {
	case c.uids[pod.UID]:
		c.refuse("pod %q has the uid of another pod: give it another metadata.uid, or none", pod.Namespace+"/"+pod.Name)
	case pod.UID != "":
		c.uids[pod.UID] = true
	default:
		pod = pod.DeepCopy()
		pod.UID = "to-be-checked" // the store replaces it; plugins put it into paths
	}
	if err := volume.CheckPathElement(string(pod.UID)); err != nil {
		c.refuse("metadata.uid of pod %q: %w", pod.Namespace+"/"+pod.Name, err)
		return
	}
	names := make(map[string]bool)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		at := fmt.Sprintf("volume %q of pod %q", v.Name, pod.Namespace+"/"+pod.Name)
		c.label(at, v.Name)
		if names[v.Name] {
			c.refuse("%s is there twice: give one of them another name", at)
		}
		names[v.Name] = true
		c.volumeSource(at, pod, v)
	}
	c.containers(pod, names)
}

func (c *checker) label(at, name string) {
	for _, problem := range validation.IsDNS1123Label(name) {
		c.refuse("%s: %s", at, problem)
	}
}

// volumeSource checks that exactly one plugin supports a volume of a pod, and that it accepts the volume's fields.
func (c *checker) volumeSource(at string, pod *v1.Pod, v *v1.Volume) {
	spec := volume.NewSpecFromVolume(v)
	c.hostPath(at, v.HostPath)
	plugin, err := c.plugins.FindPluginBySpec(spec)
	switch {
	case v.PersistentVolumeClaim == nil && err != nil:
		c.refuse("%s: %w%s", at, err, oneSource(err))
	case v.PersistentVolumeClaim == nil:
		if _, err := plugin.NewMounter(spec, pod); err != nil {
			c.refuse("%s: %w", at, err)
		}
	case err == nil || errors.Is(err, volume.ErrMultiplePlugins):
		c.refuse("%s has another source beside persistentVolumeClaim: keep one of them", at)
	case c.claimOf(pod, v) == nil:
		c.refuse("%s uses the claim %q, which is not in the manifests: add that PersistentVolumeClaim in namespace %s, "+
			"or correct claimName", at, v.PersistentVolumeClaim.ClaimName, pod.Namespace)
	}
}

// hostPath checks the path of a directory or file of this machine; source may be nil.
func (c *checker) hostPath(at string, source *v1.HostPathVolumeSource) {
	if source == nil {
		return
	}
	if err := volume.ValidatePathNoBacksteps(source.Path); err != nil {
		c.refuse("%s: hostPath: %w: write the path without it", at, err)
	}
	if !path.IsAbs(source.Path) {
		c.refuse("%s: hostPath: path %q: give an absolute path", at, source.Path)
	}
}

// containers checks the names of the containers of pod and where they mount its volumes.
func (c *checker) containers(pod *v1.Pod, volumes map[string]bool) {
	names := make(map[string]bool)
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, container := range containers {
			at := fmt.Sprintf("container %q of pod %q", container.Name, pod.Namespace+"/"+pod.Name)
			c.label(at, container.Name)
			if names[container.Name] {
				c.refuse("%s is there twice: give one of them another name", at)
			}
			names[container.Name] = true
			if len(container.VolumeDevices) > 0 {
				c.refuse("%s: volumeDevices: raw block devices are not shown by this example: use volumeMounts", at)
			}
			c.volumeMounts(at, container.VolumeMounts, volumes)
		}
	}
	if len(containerMounts(pod)) == 0 {
		c.refuse("pod %q mounts no volume in any container: add volumes and volumeMounts", pod.Namespace+"/"+pod.Name)
	}
}

// maxMountPath is the largest length of a mountPath in bytes: it becomes one name in a directory.
const maxMountPath = 255

func (c *checker) volumeMounts(at string, mounts []v1.VolumeMount, volumes map[string]bool) {
	paths := make(map[string]bool)
	for _, m := range mounts {
		clean := path.Clean(m.MountPath)
		switch {
		case !volumes[m.Name]:
			c.refuse("%s mounts the volume %q, which its pod does not have: add it to spec.volumes", at, m.Name)
		case !path.IsAbs(m.MountPath) || clean == "/":
			c.refuse("%s: mountPath %q: give an absolute path below /", at, m.MountPath)
		case volume.ValidatePathNoBacksteps(m.MountPath) != nil || strings.ContainsFunc(m.MountPath, isControl):
			c.refuse("%s: mountPath %q: write the path without '..' and without control characters", at, m.MountPath)
		case len(clean) > maxMountPath:
			c.refuse("%s: mountPath %q: give one of at most %d bytes", at, m.MountPath, maxMountPath)
		case paths[clean]:
			c.refuse("%s mounts two volumes at %s: give one of them another mountPath", at, clean)
		case m.SubPath != "" || m.SubPathExpr != "":
			c.refuse("%s: subPath %q: sub-paths are not shown by this example: mount the whole volume",
				at, m.SubPath+m.SubPathExpr)
		}
		paths[clean] = true
	}
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

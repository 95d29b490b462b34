package files

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// The names of the plugins, as in Kubernetes.
const (
	ConfigMapName   = "kubernetes.io/configmap"
	SecretName      = "kubernetes.io/secret"
	DownwardAPIName = "kubernetes.io/downward-api"
	ProjectedName   = "kubernetes.io/projected"
)

// Options are the options of a plugin. The zero value is useful.
type Options struct {
	// Mounter mounts the tmpfs of volumes in memory. Nil means the host's own mounts, by mount.New.
	Mounter mount.Interface
	// Directories creates and fills the directories of volumes. Nil means directories on the node's filesystems.
	Directories Directories
}

// kind is the kind of source that a plugin serves.
type kind struct {
	name string
	// source is the field of a manifest, such as "configMap".
	source string
	// inMemory is true if the files must not reach a disk.
	inMemory bool
	// project returns the source of vol as the source of a projected volume; nil if vol has no source of this kind.
	project func(vol *v1.Volume) *v1.ProjectedVolumeSource
	// blank sets an empty source of this kind in vol.
	blank func(vol *v1.Volume)
}

// Plugin serves one kind of source. Make it with one of the constructors. It may be used from several goroutines at once, and keeps
// nothing in memory about volumes.
type Plugin struct {
	kind
	getters     Getters
	mount       mount.Interface
	directories Directories
	host        volume.VolumeHost
}

var (
	_ volume.VolumePlugin                = (*Plugin)(nil)
	_ volume.RemountableVolumePlugin     = (*Plugin)(nil)
	_ volume.MountingVolumePlugin        = (*Plugin)(nil)
	_ volume.ReconstructableVolumePlugin = (*Plugin)(nil)
	_ volume.SpecKindDeclarer            = (*Plugin)(nil)
	_ volume.Explainer                   = (*Plugin)(nil)
)

// NewConfigMap returns the plugin of config maps. It does no I/O, and neither do the other constructors.
func NewConfigMap(configMaps ConfigMaps, options Options) *Plugin {
	return newPlugin(configMapKind(), Getters{ConfigMaps: configMaps}, options)
}

// NewSecret returns the plugin of secrets.
func NewSecret(secrets Secrets, options Options) *Plugin {
	return newPlugin(secretKind(), Getters{Secrets: secrets}, options)
}

// NewDownwardAPI returns the plugin of the downward API. If node is nil, the plugin refuses a volume that refers to a limit that its
// container does not set.
func NewDownwardAPI(node Node, options Options) *Plugin {
	return newPlugin(downwardAPIKind(), Getters{Node: node}, options)
}

// NewProjected returns the plugin of projected volumes.
func NewProjected(getters Getters, options Options) *Plugin {
	return newPlugin(projectedKind(), getters, options)
}

func newPlugin(kind kind, getters Getters, options Options) *Plugin {
	if options.Mounter == nil {
		options.Mounter = mount.New(mount.Options{})
	}
	if options.Directories == nil {
		options.Directories = nodeDirectories{options.Mounter}
	}
	return &Plugin{kind: kind, getters: getters, mount: options.Mounter, directories: options.Directories}
}

// Init implements [volume.VolumePlugin].
func (p *Plugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

// GetPluginName implements [volume.VolumePlugin].
func (p *Plugin) GetPluginName() string { return p.name }

// GetVolumeName implements [volume.VolumePlugin]. The name is the inner name, which is unique only within its pod.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if _, err := p.projected(spec); err != nil {
		return "", err
	}
	return spec.Name(), nil
}

// CanSupport implements [volume.VolumePlugin].
func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	return spec != nil && spec.Volume != nil && p.project(spec.Volume) != nil
}

// SpecKinds implements [volume.SpecKindDeclarer].
func (p *Plugin) SpecKinds() []volume.SpecKind { return []volume.SpecKind{{Source: p.source}} }

// ExplainSupport implements [volume.Explainer].
func (p *Plugin) ExplainSupport(spec *volume.Spec) error {
	if p.CanSupport(spec) {
		return nil
	}
	return errors.New("it has no " + p.source + " source")
}

// RequiresRemount implements [volume.RemountableVolumePlugin]. It is true, because the objects of the sources change.
func (p *Plugin) RequiresRemount(*volume.Spec) bool { return true }

// SetUpIsMount implements [volume.MountingVolumePlugin].
func (p *Plugin) SetUpIsMount(*volume.Spec) bool { return p.inMemory }

// MountDeviceIsMount implements [volume.MountingVolumePlugin]. It is false, because the plugin stages nothing.
func (p *Plugin) MountDeviceIsMount(*volume.Spec) bool { return false }

// NewMounter implements [volume.VolumePlugin].
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	source, err := p.projected(spec)
	if err != nil {
		return nil, err
	}
	if pod == nil {
		return nil, fmt.Errorf("%s volume %q: the pod is nil: %w", p.source, spec.Name(), volume.ErrInvalid)
	}
	at, err := p.podDirectory(spec.Name(), pod.UID)
	if err != nil {
		return nil, err
	}
	return &mounter{podDirectory: at, source: source, pod: pod}, nil
}

// NewUnmounter implements [volume.VolumePlugin].
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	at, err := p.podDirectory(name, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{at}, nil
}

// ConstructVolumeSpec implements [volume.ReconstructableVolumePlugin]. The spec does not name the objects: a teardown does not need
// them. If SetUp has not made the directory or mount at the path, that is an error, so that a teardown never removes foreign content.
func (p *Plugin) ConstructVolumeSpec(volumeName, mountPath string) (volume.ReconstructedVolume, error) {
	//nolint:forbidigo // The interface has no context.
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	if err := p.prove(ctx, volumeName, mountPath); err != nil {
		return volume.ReconstructedVolume{}, fmt.Errorf("%s volume at %s: %w", p.source, mountPath, err)
	}
	vol := &v1.Volume{Name: volumeName}
	p.blank(vol)
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(vol)}, nil
}

// lookTimeout bounds a read of a directory of the node.
const lookTimeout = 10 * time.Second

// prove returns an error unless SetUp made the directory or mount at path for the volume of that name.
func (p *Plugin) prove(ctx context.Context, volumeName, path string) error {
	below, err := filepath.Rel(p.host.GetPodsDir(), path)
	if err != nil {
		return fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	uid, _, _ := strings.Cut(below, "/")
	at, err := p.podDirectory(volumeName, types.UID(uid))
	if err != nil {
		return err
	}
	if at.path != path {
		return fmt.Errorf("the volume %q of that pod would be at %s: %w", volumeName, at.path, volume.ErrInvalid)
	}
	return at.prove(ctx)
}

// projected returns the source of spec as the source of a projected volume.
func (p *Plugin) projected(spec *volume.Spec) (*v1.ProjectedVolumeSource, error) {
	if !p.CanSupport(spec) {
		return nil, fmt.Errorf("volume %q has no %s source: it is not one of %s: %w", spec.Name(), p.source, p.name, volume.ErrInvalid)
	}
	return p.project(spec.Volume), nil
}

// podDirectory is the directory of one volume of one pod.
type podDirectory struct {
	volume.MetricsProvider
	plugin *Plugin
	name   string
	path   string
	// proofs is the directory with the proofs of which directories SetUp has made.
	proofs string
}

func (p *Plugin) podDirectory(name string, podUID types.UID) (podDirectory, error) {
	if err := errors.Join(volume.CheckPathElement(name), volume.CheckPathElement(string(podUID))); err != nil {
		return podDirectory{}, fmt.Errorf("%s volume of pod %q: %w", p.source, podUID, err)
	}
	at := podDirectory{plugin: p, name: name, path: p.host.GetPodVolumeDir(podUID, p.name, name), proofs: p.host.GetPodPluginDir(podUID, p.name)}
	at.MetricsProvider = p.metricsOf(at.path)
	return at, nil
}

// metricsOf returns the metrics provider of the volume at path.
func (p *Plugin) metricsOf(path string) volume.MetricsProvider {
	if measured, ok := p.directories.(MeasuredDirectories); ok {
		return measured.Metrics(path)
	}
	if p.inMemory {
		return &volume.Dir{Path: path}
	}
	return volume.NewMetricsDu(path)
}

// GetPath implements [volume.Volume].
func (at podDirectory) GetPath() string { return at.path }

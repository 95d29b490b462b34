package nfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// Name is the name of the plugin, as in Kubernetes.
const Name = "kubernetes.io/nfs"

// Resolver finds the addresses of a server. *net.Resolver is one.
type Resolver interface {
	// LookupNetIP returns the addresses of host; network is "ip".
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options are the options of the plugin. The zero value is useful.
type Options struct {
	// Mounter mounts with the kernel's own client, and unmounts. Nil means the host's own mounts, by mount.New.
	Mounter mount.Interface
	// Helper mounts by mount.nfs(8). Nil means a mount.Mounter with that helper, which the plugin uses only for mounts that
	// the kernel's own client cannot make. A Helper that is set mounts every volume.
	Helper mount.Interface
	// Resolver finds the addresses of servers. Nil means net.DefaultResolver.
	Resolver Resolver
	// ForceAfter is how long a teardown waits for a plain unmount before it aborts the calls to the server (umount -f).
	// Zero means that it never aborts them.
	ForceAfter time.Duration
	// Lazy detaches a mount that is still busy after the forced unmount. The kernel completes the unmount later.
	Lazy bool
	// Recycler recycles volumes by a pod of the orchestrator. Nil means that the plugin recycles in this process.
	Recycler volume.PodRecycler
}

// Plugin serves NFS exports. Make one with [New]; it may be used from several goroutines at once.
type Plugin struct {
	host    volume.VolumeHost
	options Options
	// helped says that the helper mounts every volume.
	helped bool
}

var (
	_ volume.VolumePlugin                = (*Plugin)(nil)
	_ volume.PersistentVolumePlugin      = (*Plugin)(nil)
	_ volume.RecyclableVolumePlugin      = (*Plugin)(nil)
	_ volume.MountOptionVolumePlugin     = (*Plugin)(nil)
	_ volume.ReconstructableVolumePlugin = (*Plugin)(nil)
	_ volume.MountingVolumePlugin        = (*Plugin)(nil)
	_ volume.SpecKindDeclarer            = (*Plugin)(nil)
	_ volume.Explainer                   = (*Plugin)(nil)
)

// New returns the plugin. It does no I/O.
func New(options Options) *Plugin {
	helped := options.Helper != nil
	if options.Mounter == nil {
		options.Mounter = mount.New(mount.Options{})
	}
	if !helped {
		options.Helper = mount.New(mount.Options{Helpers: map[string]mount.Helper{fsType: {Path: ""}}})
	}
	if options.Resolver == nil {
		options.Resolver = net.DefaultResolver
	}
	return &Plugin{options: options, helped: helped}
}

// Init implements [volume.VolumePlugin].
func (p *Plugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

// GetPluginName implements [volume.VolumePlugin].
func (p *Plugin) GetPluginName() string { return Name }

// GetVolumeName implements [volume.VolumePlugin]. As in Kubernetes, the name is server/path, and the path begins with its
// own slash.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	e, err := exportOf(spec)
	if err != nil {
		return "", err
	}
	return e.server + "/" + e.path, nil
}

// CanSupport implements [volume.VolumePlugin].
func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	switch {
	case spec == nil:
		return false
	case spec.Volume != nil:
		return spec.Volume.NFS != nil
	}
	return spec.PersistentVolume != nil && spec.PersistentVolume.Spec.NFS != nil
}

// ExplainSupport implements [volume.Explainer].
func (p *Plugin) ExplainSupport(spec *volume.Spec) error {
	if p.CanSupport(spec) {
		return nil
	}
	return errors.New("it has no nfs source")
}

// SpecKinds implements [volume.SpecKindDeclarer].
func (p *Plugin) SpecKinds() []volume.SpecKind { return []volume.SpecKind{{Source: "nfs"}} }

// SetUpIsMount implements [volume.MountingVolumePlugin].
func (p *Plugin) SetUpIsMount(*volume.Spec) bool { return true }

// MountDeviceIsMount implements [volume.MountingVolumePlugin]. It is false, because the plugin stages nothing.
func (p *Plugin) MountDeviceIsMount(*volume.Spec) bool { return false }

// SupportsMountOption implements [volume.MountOptionVolumePlugin].
func (p *Plugin) SupportsMountOption() bool { return true }

// GetAccessModes implements [volume.PersistentVolumePlugin].
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany}
}

// NewMounter implements [volume.VolumePlugin].
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	e, err := exportOf(spec)
	if err != nil {
		return nil, err
	}
	if pod == nil {
		return nil, fmt.Errorf("nfs volume %q: the pod is nil: %w", spec.Name(), volume.ErrInvalid)
	}
	options := volume.MountOptionFromSpec(spec)
	if err := checkOptions(options); err != nil {
		return nil, fmt.Errorf("nfs volume %q: %w", spec.Name(), err)
	}
	at, err := p.podDirectory(spec.Name(), pod.UID)
	if err != nil {
		return nil, err
	}
	return &mounter{podDirectory: at, export: e, options: options}, nil
}

// NewUnmounter implements [volume.VolumePlugin].
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	at, err := p.podDirectory(name, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{at}, nil
}

// podDirectory is where one volume of one pod is mounted.
type podDirectory struct {
	volume.MetricsProvider
	plugin *Plugin
	name   string
	path   string
}

func (p *Plugin) podDirectory(name string, podUID types.UID) (podDirectory, error) {
	if err := errors.Join(volume.CheckPathElement(name), volume.CheckPathElement(string(podUID))); err != nil {
		return podDirectory{}, fmt.Errorf("nfs volume of pod %q: %w", podUID, err)
	}
	path := p.host.GetPodVolumeDir(podUID, Name, name)
	return podDirectory{MetricsProvider: metricsOf(p.options.Mounter, path), plugin: p, name: name, path: path}, nil
}

// metricsOf returns the metrics provider of the volume at path. A mounter in memory, such as fake.Mounter, has its own. Otherwise it
// is statfs.
func metricsOf(mounter mount.Interface, path string) volume.MetricsProvider {
	if elsewhere, ok := mounter.(interface {
		Metrics(path string) volume.MetricsProvider
	}); ok {
		return elsewhere.Metrics(path)
	}
	return volume.NewMetricsStatFS(path)
}

// GetPath implements [volume.Volume].
func (p podDirectory) GetPath() string { return p.path }

// ConstructVolumeSpec implements [volume.ReconstructableVolumePlugin]. If the volume is mounted, the mount shows the
// server, the path and whether it is read-only. Otherwise the server is [UnknownServer], and the spec serves only for a
// teardown.
func (p *Plugin) ConstructVolumeSpec(volumeName, mountPath string) (volume.ReconstructedVolume, error) {
	if err := volume.CheckPathElement(volumeName); err != nil {
		return volume.ReconstructedVolume{}, fmt.Errorf("nfs volume at %s: %w", mountPath, err)
	}
	source := &v1.NFSVolumeSource{Server: UnknownServer, Path: "/" + volumeName}
	//nolint:forbidigo // The interface has no context, and a look at the mount table waits for no server.
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	if found, err := p.options.Mounter.Lookup(ctx, mountPath); err == nil && isNFS(found) {
		if e, ok := exportOfDevice(found.Source); ok {
			source = &v1.NFSVolumeSource{Server: e.server, Path: e.path, ReadOnly: found.ReadOnly()}
		}
	}
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name: volumeName, VolumeSource: v1.VolumeSource{NFS: source},
	})}, nil
}

// UnknownServer is the server in the spec of a volume that was found without a mount. No server can have that name.
const UnknownServer = "unknown.invalid"

// lookTimeout bounds a read of the mount table, which never waits for a server.
const lookTimeout = 10 * time.Second

// isNFS reports whether the mount is an NFS mount.
func isNFS(m mount.MountPoint) bool { return m.FSType == fsType || strings.HasPrefix(m.FSType, "nfs4") }

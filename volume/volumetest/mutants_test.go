package volumetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// mutant is a plugin with one defect: each hook that is set changes what the fake plugin does.
type mutant struct {
	*fake.Plugin
	world *fake.Mounter

	spec        func(*volume.Spec) *volume.Spec
	name        func(string) string
	mounter     func(volume.Mounter, *volume.Spec) volume.Mounter
	unmounter   func(volume.Unmounter) volume.Unmounter
	device      func(device) device
	provisioner func(volume.VolumeOptions) volume.VolumeOptions
	provisioned func(*v1.PersistentVolume)
	refs        func([]string) []string
	construct   func(string) string
	kinds       func([]volume.SpecKind) []volume.SpecKind
	supports    func(*volume.Spec) bool
	mapper      func(volume.CustomBlockVolumeMapper, *v1.Pod) volume.BlockVolumeMapper
	expand      func(want, has resource.Quantity) resource.Quantity
	nodeExpand  func() (bool, error)
	modify      modifyFunc
	provision   func(ctx context.Context, made volume.Provisioner) (*v1.PersistentVolume, error)
	recycled    func(*volume.Spec) string
	mounts      func(bool) bool
	lists       func([]volume.Attachment) []volume.Attachment
	capacity    string
	cut         cutShort
	// cutRecycling is true where a recycling that was cut short is in the way of the next.
	cutRecycling bool
	cutExpansion bool // likewise
	snapshots    snapshotHooks
	room         func(context.Context, volume.CapacityOptions) (volume.Capacity, error)
}

// cutShort does not get over a call whose context ended.
type cutShort struct{ stuck atomic.Bool }

func (c *cutShort) call(ctx context.Context, work func() error) error {
	if c.stuck.Load() {
		return errors.New("an earlier call is still under way")
	}
	if ctx.Err() != nil {
		c.stuck.Store(true)
		return ctx.Err()
	}
	return work()
}

// clumsy is a device whose calls get stuck.
type clumsy struct {
	device
	cut *cutShort
}

func (c *clumsy) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (path string, err error) {
	err = c.cut.call(ctx, func() error {
		path, err = c.device.Attach(ctx, spec, node)
		return err
	})
	return path, err
}

func (c *clumsy) MountDevice(ctx context.Context, spec *volume.Spec, from, to string, args volume.DeviceMounterArgs) error {
	return c.cut.call(ctx, func() error { return c.device.MountDevice(ctx, spec, from, to, args) })
}

// untokened is a device that attaches whatever the token says.
type untokened struct{ device }

func (u untokened) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return u.device.Attach(context.Background(), spec, node)
}

// clumsyMapper is a mapper whose calls get stuck.
type clumsyMapper struct {
	volume.CustomBlockVolumeMapper
	cut *cutShort
}

func (c clumsyMapper) SetUpDevice(ctx context.Context, args volume.SetUpDeviceArgs) (path string, err error) {
	err = c.cut.call(ctx, func() error {
		path, err = c.CustomBlockVolumeMapper.SetUpDevice(ctx, args)
		return err
	})
	return path, err
}

// device is what attaches and stages.
type device interface {
	volume.Attacher
	volume.Detacher
}

func (m *mutant) ListAttachments(ctx context.Context) ([]volume.Attachment, error) {
	found, err := m.Plugin.ListAttachments(ctx)
	if m.lists != nil {
		found = m.lists(found)
	}
	return found, err
}

func (m *mutant) given(spec *volume.Spec) *volume.Spec {
	if m.spec == nil {
		return spec
	}
	return m.spec(spec)
}

func (m *mutant) GetPluginName() string {
	if m.name != nil {
		return m.name(m.Plugin.GetPluginName())
	}
	return m.Plugin.GetPluginName()
}

func (m *mutant) SpecKinds() []volume.SpecKind {
	if m.kinds != nil {
		return m.kinds(m.Plugin.SpecKinds())
	}
	return m.Plugin.SpecKinds()
}

func (m *mutant) CanSupport(spec *volume.Spec) bool {
	return m.Plugin.CanSupport(spec) || m.supports != nil && m.supports(spec)
}

func (m *mutant) GetVolumeName(spec *volume.Spec) (string, error) {
	return m.Plugin.GetVolumeName(m.given(spec))
}

func (m *mutant) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	made, err := m.Plugin.NewMounter(m.given(spec), pod)
	if err != nil || m.mounter == nil {
		return made, err
	}
	return m.mounter(made, spec), nil
}

func (m *mutant) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	made, err := m.Plugin.NewUnmounter(name, podUID)
	if err != nil || m.unmounter == nil {
		return made, err
	}
	return m.unmounter(made), nil
}

func (m *mutant) newDevice() (device, error) {
	attacher, err := m.Plugin.NewAttacher()
	if err != nil {
		return nil, err
	}
	made, ok := attacher.(device)
	if !ok {
		return nil, errors.New("the fake's attacher does not detach")
	}
	made = &respecced{device: made, spec: m.given}
	if m.device != nil {
		made = m.device(made)
	}
	return made, nil
}

func (m *mutant) NewAttacher() (volume.Attacher, error)               { return m.newDevice() }
func (m *mutant) NewDetacher() (volume.Detacher, error)               { return m.newDevice() }
func (m *mutant) NewDeviceMounter() (volume.DeviceMounter, error)     { return m.newDevice() }
func (m *mutant) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return m.newDevice() }

func (m *mutant) GetDeviceMountRefs(ctx context.Context, path string) ([]string, error) {
	refs, err := m.Plugin.GetDeviceMountRefs(ctx, path)
	if m.refs != nil {
		refs = m.refs(refs)
	}
	return refs, err
}

func (m *mutant) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	if m.provisioner != nil {
		options = m.provisioner(options)
	}
	made, err := m.Plugin.NewProvisioner(options)
	return &shrunk{Provisioner: made, provision: m.provision, capacity: m.capacity, change: m.provisioned}, err
}

func (m *mutant) Recycle(ctx context.Context, name string, spec *volume.Spec, recorder volume.RecycleEventRecorder) error {
	if m.recycled != nil {
		recorder(v1.EventTypeNormal, m.recycled(spec))
	}
	if m.cutRecycling {
		return m.cut.call(ctx, func() error { return m.Plugin.Recycle(ctx, name, spec, recorder) })
	}
	return m.Plugin.Recycle(ctx, name, spec, recorder)
}

func (m *mutant) SetUpIsMount(spec *volume.Spec) bool {
	if m.mounts != nil {
		return m.mounts(m.Plugin.SetUpIsMount(spec))
	}
	return m.Plugin.SetUpIsMount(spec)
}

func (m *mutant) ConstructVolumeSpec(name, path string) (volume.ReconstructedVolume, error) {
	if m.construct != nil {
		name = m.construct(name)
	}
	return m.Plugin.ConstructVolumeSpec(name, path)
}

func (m *mutant) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	made, err := m.Plugin.NewBlockVolumeMapper(m.given(spec), pod)
	custom, ok := made.(volume.CustomBlockVolumeMapper)
	if err != nil || !ok || m.mapper == nil {
		return made, err
	}
	return m.mapper(custom, pod), nil
}

func (m *mutant) ConstructBlockVolumeSpec(podUID types.UID, name, path string) (*volume.Spec, error) {
	if m.construct != nil {
		name = m.construct(name)
	}
	return m.Plugin.ConstructBlockVolumeSpec(podUID, name, path)
}

func (m *mutant) ExpandVolumeDevice(ctx context.Context, spec *volume.Spec, want, has resource.Quantity) (resource.Quantity, error) {
	if m.expand != nil {
		return m.expand(want, has), nil
	}
	return m.Plugin.ExpandVolumeDevice(ctx, spec, want, has)
}

func (m *mutant) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (grown bool, err error) {
	if m.nodeExpand != nil {
		return m.nodeExpand()
	}
	if m.cutExpansion {
		err = m.cut.call(ctx, func() error {
			grown, err = m.Plugin.NodeExpand(ctx, options)
			return err
		})
		return grown, err
	}
	return m.Plugin.NodeExpand(ctx, options)
}

// modifyFunc modifies a volume with the fake plugin, or in its own way.
type modifyFunc func(ctx context.Context, made *fake.Plugin, spec *volume.Spec, parameters map[string]string) error

func (m *mutant) ModifyVolume(ctx context.Context, spec *volume.Spec, parameters map[string]string) error {
	if m.modify != nil {
		return m.modify(ctx, m.Plugin, spec, parameters)
	}
	return m.Plugin.ModifyVolume(ctx, spec, parameters)
}

// known returns the parameters that the fake plugin knows.
func known(parameters map[string]string) map[string]string {
	parameters = maps.Clone(parameters)
	maps.DeleteFunc(parameters, func(key, _ string) bool { return key != fake.ParameterIOPS && key != fake.ParameterTier })
	return parameters
}

// forgetful is a device whose storage loses its attributes when it is detached.
type forgetful struct {
	device
	plugin *fake.Plugin
}

func (f forgetful) Detach(ctx context.Context, name string, node types.NodeName) error {
	err := f.device.Detach(ctx, name, node)
	return errors.Join(err, f.plugin.ModifyVolume(ctx, named(name), map[string]string{fake.ParameterTier: "forgotten"}))
}

// named returns the spec of the fake plugin's volume of that handle.
func named(handle string) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: handle},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: "fake.example.com", VolumeHandle: handle},
		}},
	}, false)
}

// keeping is the mutant on a filesystem that keeps its content when it is unmounted, which the fake plugin never deletes.
func (m *mutant) keeping() {
	m.Plugin = fake.NewPlugin(fake.PluginOptions{Mounter: m.world, Backend: m.Backend(), FSType: "ext4"})
}

// copyingNothing makes an empty volume whatever a claim's data source is.
func (m *mutant) copyingNothing() {
	m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
		o.PVC = o.PVC.DeepCopy()
		o.Source, o.PVC.Spec.DataSource = nil, nil
		return o
	}
}

// handingOutTheSource gives a copy the storage of its source.
func (m *mutant) handingOutTheSource() {
	var source *v1.PersistentVolume
	m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
		source = o.Source
		return o
	}
	m.provisioned = func(pv *v1.PersistentVolume) {
		if source != nil {
			pv.Spec.CSI.VolumeHandle = source.Spec.CSI.VolumeHandle
		}
	}
}

// ownMap is a mapper with a global map path for each pod.
type ownMap struct {
	volume.CustomBlockVolumeMapper
	pod *v1.Pod
}

func (o ownMap) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	path, err := o.CustomBlockVolumeMapper.GetGlobalMapPath(spec)
	return path + "-" + string(o.pod.UID), err
}

// wiping is a mapper that begins with an empty device each time.
type wiping struct {
	volume.CustomBlockVolumeMapper
	world *fake.Mounter
}

func (w wiping) SetUpDevice(ctx context.Context, args volume.SetUpDeviceArgs) (string, error) {
	if err := w.world.WriteFile(args.DevicePath, nil, 0o600); err != nil {
		return "", err
	}
	return w.CustomBlockVolumeMapper.SetUpDevice(ctx, args)
}

// noMetrics is a mounter that counts nothing.
type noMetrics struct{ volume.Mounter }

func (noMetrics) GetMetrics(context.Context) (*volume.Metrics, error) {
	zero := resource.NewQuantity(0, resource.BinarySI)
	return &volume.Metrics{Time: metav1.Now(), Capacity: zero, Used: zero, Available: zero}, nil
}

// respecced changes the spec that a device is given.
type respecced struct {
	device
	spec func(*volume.Spec) *volume.Spec
}

func (r *respecced) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	return r.device.Attach(ctx, r.spec(spec), node)
}

func (r *respecced) WaitForAttach(ctx context.Context, spec *volume.Spec, path string, pod *v1.Pod) (string, error) {
	return r.device.WaitForAttach(ctx, r.spec(spec), path, pod)
}

func (r *respecced) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	return r.device.GetDeviceMountPath(r.spec(spec))
}

func (r *respecced) MountDevice(ctx context.Context, spec *volume.Spec, from, to string, args volume.DeviceMounterArgs) error {
	return r.device.MountDevice(ctx, r.spec(spec), from, to, args)
}

// shrunk says another capacity than it has made, or provisions in another way.
type shrunk struct {
	volume.Provisioner
	provision func(ctx context.Context, made volume.Provisioner) (*v1.PersistentVolume, error)
	capacity  string
	change    func(*v1.PersistentVolume)
}

func (s *shrunk) Provision(ctx context.Context, node *v1.Node, terms []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	if s.provision != nil {
		return s.provision(ctx, s.Provisioner)
	}
	pv, err := s.Provisioner.Provision(ctx, node, terms)
	if err == nil && s.capacity != "" {
		pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(s.capacity)}
	}
	if err == nil && s.change != nil {
		s.change(pv)
	}
	return pv, err
}

// setUpFunc is a mounter whose SetUp is another.
type setUpFunc struct {
	volume.Mounter
	setUp func(ctx context.Context, m volume.Mounter, args volume.MounterArgs) error
}

func (s *setUpFunc) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return s.setUp(ctx, s.Mounter, args)
}

func withSetUp(setUp func(context.Context, volume.Mounter, volume.MounterArgs) error) func(volume.Mounter, *volume.Spec) volume.Mounter {
	return func(m volume.Mounter, _ *volume.Spec) volume.Mounter { return &setUpFunc{m, setUp} }
}

// tearDownFunc is an unmounter whose TearDown is another.
type tearDownFunc struct {
	volume.Unmounter
	tearDown func(ctx context.Context, u volume.Unmounter) error
}

func (d *tearDownFunc) TearDown(ctx context.Context) error { return d.tearDown(ctx, d.Unmounter) }

func withTearDown(tearDown func(context.Context, volume.Unmounter) error) func(volume.Unmounter) volume.Unmounter {
	return func(u volume.Unmounter) volume.Unmounter { return &tearDownFunc{u, tearDown} }
}

// otherPath is a mounter whose path is another each time.
type otherPath struct {
	volume.Mounter
	n atomic.Int64
}

func (o *otherPath) GetPath() string { return fmt.Sprintf("%s-%d", o.Mounter.GetPath(), o.n.Add(1)) }

// otherMetrics is a mounter that measures nonsense.
type otherMetrics struct{ volume.Mounter }

func (otherMetrics) GetMetrics(context.Context) (*volume.Metrics, error) {
	return &volume.Metrics{Used: resource.NewQuantity(-1, resource.BinarySI)}, nil
}

// unwell is a mounter that reports a condition of each volume.
type unwell struct {
	volume.Mounter
	condition volume.HealthCondition
}

func (u unwell) GetHealth(context.Context) ([]volume.HealthCondition, error) {
	return []volume.HealthCondition{u.condition}, nil
}

// reporting makes the mounters of a mutant report a condition.
func reporting(status volume.HealthStatus, reason string) func(m *mutant) {
	return func(m *mutant) {
		m.mounter = func(made volume.Mounter, _ *volume.Spec) volume.Mounter {
			return unwell{made, volume.HealthCondition{Status: status, Reason: reason}}
		}
	}
}

// says is a mounter that says of itself that it is read-only.
type says struct{ volume.Mounter }

func (s says) GetAttributes() volume.Attributes { return volume.Attributes{ReadOnly: true} }

// relative is a device with a path that is not absolute.
type relative struct{ device }

func (r relative) WaitForAttach(ctx context.Context, spec *volume.Spec, path string, pod *v1.Pod) (string, error) {
	path, err := r.device.WaitForAttach(ctx, spec, path, pod)
	return strings.TrimPrefix(path, "/"), err
}

// onTop mounts without looking.
type onTop struct {
	device
	world *fake.Mounter
}

func (o onTop) MountDevice(ctx context.Context, _ *volume.Spec, _, path string, _ volume.DeviceMounterArgs) error {
	parent := path[:strings.LastIndex(path, "/")]
	if err := o.world.MkdirAll(parent, 0o750); err != nil {
		return err
	}
	return o.world.Mount(ctx, mount.Request{Source: "tmpfs", Target: path, FSType: "tmpfs"})
}

// strict is a device that fails where it has nothing to do.
type strict struct {
	device
	backend *fake.Backend
}

func (s strict) Detach(ctx context.Context, name string, node types.NodeName) error {
	if len(s.backend.Nodes(name)) == 0 {
		return errors.New("it is not attached")
	}
	return s.device.Detach(ctx, name, node)
}

// defects are the mutants, by the rule that each breaks. arrange changes the mutant, and what it shares with the values
// that come after it.
func defects() map[string]func(m *mutant) {
	var shared sync.Map // what all values of one mutant remember
	first := func(key any) bool {
		_, seen := shared.LoadOrStore(key, true)
		return !seen
	}
	inject := func(method fake.Method, faults ...fake.Fault) func(*mutant) {
		return func(m *mutant) { m.Inject(method, faults...) }
	}
	always := fake.Fault{Times: -1}
	all := snapshotDefects()
	maps.Copy(all, capacityDefects())
	maps.Copy(all, map[string]func(m *mutant){
		"I1": func(m *mutant) {
			suffix := "x" + nextID()
			m.name = func(name string) string { return name + suffix }
		},
		"I3": func(m *mutant) {
			m.spec = func(s *volume.Spec) *volume.Spec { return withHandle(s, nextID()) }
		},
		"I4": func(m *mutant) {
			m.spec = func(s *volume.Spec) *volume.Spec {
				if m.CanSupport(s) {
					return s
				}
				return fakeSpec(nil)
			}
		},
		"I5": func(m *mutant) {
			m.spec = func(s *volume.Spec) *volume.Spec {
				if volume.CheckPathElement(s.Name()) == nil {
					return s
				}
				s = copySpec(s)
				rename(s, "mended")
				return s
			}
		},
		"I6": func(m *mutant) {
			m.spec = func(s *volume.Spec) *volume.Spec {
				if s.PersistentVolume != nil {
					s.PersistentVolume.Labels = map[string]string{"seen": "true"}
				}
				return s
			}
		},
		"I7": func(m *mutant) {
			m.supports = func(s *volume.Spec) bool { return s.Volume != nil && s.Volume.NFS != nil }
		},
		"M1": inject(fake.MethodSetUp, always),
		"M2": func(m *mutant) {
			m.mounter = func(made volume.Mounter, _ *volume.Spec) volume.Mounter { return &otherPath{Mounter: made} }
		},
		"M3": func(m *mutant) {
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				if first(made) {
					return made.SetUp(ctx, args)
				}
				return m.world.Mount(ctx, mount.Request{Source: "tmpfs", Target: made.GetPath(), FSType: "tmpfs"})
			})
		},
		"M4": func(m *mutant) {
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				if err := m.world.Unmount(ctx, made.GetPath(), mount.UnmountOptions{}); err == nil {
					return m.world.Mount(ctx, mount.Request{Source: "tmpfs", Target: made.GetPath(), FSType: "tmpfs"})
				}
				return made.SetUp(ctx, args)
			})
		},
		"M5": func(m *mutant) { m.mounter = withSetUp(m.unlocked) },
		"M6": func(m *mutant) {
			m.spec = func(s *volume.Spec) *volume.Spec { return withHandle(s, "same") }
		},
		"M7": func(m *mutant) {
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				return errors.Join(made.SetUp(context.WithoutCancel(ctx), args), ctx.Err())
			})
		},
		"M8": func(m *mutant) {
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				if _, ok := ctx.Deadline(); !ok {
					return made.SetUp(ctx, args)
				}
				<-ctx.Done()
				return errors.Join(made.SetUp(context.WithoutCancel(ctx), args), ctx.Err())
			})
		},
		"M9": func(m *mutant) {
			m.mounter, m.unmounter = withSetUp(m.unlocked), withTearDown(m.unlockedTearDown)
		},
		"M10": func(m *mutant) {
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				err := errors.Join(made.SetUp(ctx, args), ctx.Err())
				if err != nil {
					_ = mount.UnmountPath(context.WithoutCancel(ctx), m.world, made.GetPath(), mount.UnmountOptions{})
				}
				return err
			})
		},
		"M17": func(m *mutant) {
			m.mounter = again(func(_ context.Context, m *mutant, path string) error { return m.world.Chmod(path, 0o700) })(m)
		},
		"M12": func(m *mutant) { m.mounts = func(is bool) bool { return !is } },
		"B6": func(m *mutant) {
			m.mapper = func(made volume.CustomBlockVolumeMapper, _ *v1.Pod) volume.BlockVolumeMapper {
				return clumsyMapper{made, &m.cut}
			}
		},
		"Y2": func(m *mutant) { m.cutRecycling = true },
		"A6": func(m *mutant) { m.device = func(d device) device { return &clumsy{device: d, cut: &m.cut} } },
		"A7": func(m *mutant) { m.device = func(d device) device { return untokened{d} } },
		"A8": func(m *mutant) { m.lists = func(found []volume.Attachment) []volume.Attachment { return nil } },
		"S5": func(m *mutant) { m.device = func(d device) device { return &clumsy{device: d, cut: &m.cut} } },
		"P6": func(m *mutant) {
			m.provision = func(ctx context.Context, made volume.Provisioner) (*v1.PersistentVolume, error) {
				if err := m.cut.call(ctx, func() error { return nil }); err != nil {
					return nil, err
				}
				return made.Provision(ctx, nil, nil)
			}
		},
		"U1": func(m *mutant) {
			m.unmounter = withTearDown(func(ctx context.Context, made volume.Unmounter) error {
				return m.world.Unmount(ctx, made.GetPath(), mount.UnmountOptions{})
			})
		},
		"U2": func(m *mutant) {
			m.unmounter = withTearDown(func(ctx context.Context, made volume.Unmounter) error {
				if _, err := m.world.Lstat(made.GetPath()); err != nil {
					return err
				}
				return made.TearDown(ctx)
			})
		},
		"U3": func(m *mutant) {
			m.unmounter = withTearDown(func(ctx context.Context, made volume.Unmounter) error {
				if !first(made.GetPath()) {
					return errors.New("torn down already")
				}
				return made.TearDown(ctx)
			})
		},
		"U4": func(m *mutant) {
			known := map[string]bool{}
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				known[made.GetPath()] = true
				return made.SetUp(ctx, args)
			})
			m.unmounter = withTearDown(func(ctx context.Context, made volume.Unmounter) error {
				if !known[made.GetPath()] {
					return nil
				}
				return made.TearDown(ctx)
			})
		},
		"U5": func(m *mutant) {
			m.unmounter = withTearDown(func(ctx context.Context, made volume.Unmounter) error {
				_ = m.world.Remove(made.GetPath() + "/file")
				return made.TearDown(ctx)
			})
		},
		"U6": func(m *mutant) {
			m.unmounter = withTearDown(func(ctx context.Context, made volume.Unmounter) error {
				select {
				case <-ctx.Done():
					return nil
				default:
					return made.TearDown(ctx)
				}
			})
		},
		"U7": func(m *mutant) {
			m.unmounter = withTearDown(func(ctx context.Context, made volume.Unmounter) error {
				if _, ok := ctx.Deadline(); ok {
					<-ctx.Done()
					return nil
				}
				return made.TearDown(ctx)
			})
		},
		"U8": func(m *mutant) {
			m.unmounter = withTearDown(func(ctx context.Context, made volume.Unmounter) error {
				return mount.UnmountPath(ctx, m.world, made.GetPath(), mount.UnmountOptions{Lazy: true})
			})
		},
		"T1": func(m *mutant) {
			m.mounter = func(made volume.Mounter, spec *volume.Spec) volume.Mounter {
				return &setUpFunc{made, func(context.Context, volume.Mounter, volume.MounterArgs) error {
					return fmt.Errorf("options %v are not known", volume.MountOptionFromSpec(spec))
				}}
			}
		},
		"T2": func(m *mutant) {
			m.spec = func(s *volume.Spec) *volume.Spec {
				s = copySpec(s)
				if driver, _ := s.Driver(); len(driver.Parameters) > 0 {
					s.PersistentVolume.Spec.CSI.VolumeHandle += fmt.Sprint("-", len(driver.Parameters["volumetest-password"]))
				}
				return s
			}
		},
		"A5": func(m *mutant) {
			m.spec = func(s *volume.Spec) *volume.Spec {
				s = copySpec(s)
				s.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
				return s
			}
		},
		"B1": func(m *mutant) {
			m.mapper = func(made volume.CustomBlockVolumeMapper, pod *v1.Pod) volume.BlockVolumeMapper {
				return ownMap{made, pod}
			}
		},
		"B2": inject(fake.MethodMapPodDevice, fake.Fault{Times: 1, Effect: fake.EffectDone}, fake.Fail(errors.New("mapped already"))),
		"B3": inject(fake.MethodTearDownDevice, fake.Fault{Times: 1, Effect: fake.EffectDone}, fake.Fail(errors.New("no such device"))),
		"B4": func(m *mutant) {
			m.mapper = func(made volume.CustomBlockVolumeMapper, _ *v1.Pod) volume.BlockVolumeMapper {
				return wiping{made, m.world}
			}
		},
		"B5": func(m *mutant) { m.construct = func(name string) string { return name + "-again" } },
		"E1": func(m *mutant) { m.expand = func(_, has resource.Quantity) resource.Quantity { return has } },
		"E2": func(m *mutant) { m.expand = func(want, _ resource.Quantity) resource.Quantity { return want } },
		"E3": func(m *mutant) { m.nodeExpand = func() (bool, error) { return true, nil } },
		"E4": func(m *mutant) { m.cutExpansion = true },
		"H1": inject(fake.MethodModifyVolume, fake.Fault{Times: 1, Effect: fake.EffectDone}, fake.Fail(errors.New("modified already"))),
		"H2": func(m *mutant) {
			m.modify = func(ctx context.Context, made *fake.Plugin, spec *volume.Spec, parameters map[string]string) error {
				return errors.Join(made.ModifyVolume(ctx, spec, known(parameters)), made.ModifyVolume(ctx, spec, parameters))
			}
		},
		"H3": func(m *mutant) {
			m.modify = func(ctx context.Context, made *fake.Plugin, spec *volume.Spec, parameters map[string]string) error {
				table, err := m.world.List(ctx)
				for _, mounted := range table {
					_ = m.world.Remove(mounted.Path + "/file")
				}
				return errors.Join(err, made.ModifyVolume(ctx, spec, parameters))
			}
		},
		"H4": func(m *mutant) { m.device = func(d device) device { return forgetful{d, m.Plugin} } },
		"H5": func(m *mutant) {
			m.modify = func(ctx context.Context, made *fake.Plugin, spec *volume.Spec, parameters map[string]string) error {
				all := map[string]string{fake.ParameterIOPS: "1", fake.ParameterTier: "default"}
				maps.Copy(all, parameters)
				return made.ModifyVolume(ctx, spec, all)
			}
		},
		"H6": func(m *mutant) {
			m.modify = func(ctx context.Context, made *fake.Plugin, spec *volume.Spec, parameters map[string]string) error {
				err := made.ModifyVolume(ctx, spec, parameters)
				for _, handle := range m.Backend().Handles() {
					err = errors.Join(err, made.ModifyVolume(ctx, named(handle), parameters))
				}
				return err
			}
		},
		"H7": func(m *mutant) {
			m.modify = func(ctx context.Context, made *fake.Plugin, spec *volume.Spec, parameters map[string]string) error {
				return m.cut.call(ctx, func() error { return made.ModifyVolume(ctx, spec, parameters) })
			}
		},
		"H8": func(m *mutant) {
			m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
				o.MutableParameters = nil
				return o
			}
		},
		"D3": (*mutant).keeping,
		"Y1": (*mutant).keeping,
		"X2": func(m *mutant) {
			m.mounter = func(made volume.Mounter, _ *volume.Spec) volume.Mounter { return noMetrics{made} }
		},
		"X3": reporting(volume.HealthAbnormal, "FolderGone"),
		"R1": func(m *mutant) {
			m.spec = func(s *volume.Spec) *volume.Spec {
				s = copySpec(s)
				s.ReadOnly = false
				return s
			}
			m.mounter = func(made volume.Mounter, _ *volume.Spec) volume.Mounter { return says{made} }
		},
		"A1": inject(fake.MethodDetach, always),
		"A2": func(m *mutant) { m.device = func(d device) device { return strict{d, m.Backend()} } },
		"A3": func(m *mutant) {
			m.Plugin = fake.NewPlugin(fake.PluginOptions{Mounter: m.world})
		},
		"A4": func(m *mutant) { m.device = func(d device) device { return relative{d} } },
		"S1": inject(fake.MethodMountDevice, always),
		"S2": func(m *mutant) { m.device = func(d device) device { return onTop{d, m.world} } },
		"S3": inject(fake.MethodUnmountDevice, always),
		"S4": func(m *mutant) { m.refs = func([]string) []string { return nil } },
		"P1": func(m *mutant) { m.capacity = "1Ki" },
		"P2": func(m *mutant) {
			m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
				o.PVName += "-" + nextID()
				return o
			}
		},
		"P3": func(m *mutant) {
			m.provisioner = func(o volume.VolumeOptions) volume.VolumeOptions {
				o.Parameters = nil
				return o
			}
		},
		"P4": (*mutant).copyingNothing,
		"P5": (*mutant).copyingNothing,
		"D1": func(m *mutant) {
			m.Inject(fake.MethodDelete, fake.HangUntil(closed()), fake.Fail(errors.New("no such volume")))
		},
		"D2": inject(fake.MethodDelete, always),
		"X1": func(m *mutant) {
			m.mounter = func(made volume.Mounter, _ *volume.Spec) volume.Mounter { return otherMetrics{made} }
		},
		"Q1": func(m *mutant) {
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				if ctx.Err() != nil {
					<-leaked
				}
				return made.SetUp(ctx, args)
			})
		},
		"C1": func(m *mutant) { m.construct = func(name string) string { return name + "-again" } },
		"L1": func(m *mutant) {
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				go func(end <-chan struct{}) { <-end }(leaked)
				return made.SetUp(ctx, args)
			})
		},
	})
	return all
}

// leaked holds the goroutines that a mutant leaves, until its test has ended.
var leaked chan struct{}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func withHandle(spec *volume.Spec, handle string) *volume.Spec {
	spec = copySpec(spec)
	if spec.PersistentVolume != nil && spec.PersistentVolume.Spec.CSI != nil {
		spec.PersistentVolume.Spec.CSI.VolumeHandle = handle
	}
	return spec
}

// recorder is a test that keeps its failures to itself.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	skipped  string
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) { r.skip(fmt.Sprintf(format, args...)) }

func (r *recorder) Skip(args ...any) { r.skip(fmt.Sprint(args...)) }

func (r *recorder) skip(reason string) {
	r.mu.Lock()
	r.skipped = reason
	r.mu.Unlock()
	runtime.Goexit()
}

// try runs one case and returns what it reported.
func try(t *testing.T, c Case, config Config) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(r, config)
	}()
	timeout := time.NewTimer(time.Minute)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
		require.Fail(t, "the case hangs")
	}
	return r
}

// mutantConfig tests a plugin with a defect, over a fake mounter.
func mutantConfig(arrange func(*mutant)) Config {
	world := fake.NewMounter(fake.MounterOptions{})
	backend := fake.NewBackend()
	return Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin {
			m := &mutant{Plugin: fake.NewPlugin(fake.PluginOptions{Mounter: world, Backend: backend, Reuse: true, Capacity: fakeCapacity}), world: world}
			if arrange != nil {
				arrange(m)
			}
			return m
		},
		NewSpec: func(t testing.TB) *volume.Spec { return withDevice(t, world, fakeSpec(t)) },
		World:   world, RootDir: "/node", Shared: true, Lifetime: LifetimeOfStaging,
		leakTimeout:       shortTimeout,
		MutableParameters: fakeAttributes(), Attributes: attributesIn(backend), OwnCapacity: true,
	}
}

// fakeCapacity is what all volumes of a mutant can have together.
const fakeCapacity = 1 << 50

// shortTimeout is enough where a leak is expected: what is left is there for good.
const shortTimeout = 200 * time.Millisecond

// withDevice makes a file where the fake plugin says that the device of spec is.
func withDevice(t testing.TB, world *fake.Mounter, spec *volume.Spec) *volume.Spec {
	require.NoError(t, world.MkdirAll("/dev/fake", 0o755))
	require.NoError(t, world.WriteFile("/dev/fake/"+spec.PersistentVolume.Spec.CSI.VolumeHandle, nil, 0o600))
	return spec
}

func TestEachBrokenPluginIsCaughtByTheCaseOfItsRule(t *testing.T) {
	leaked = make(chan struct{})
	defer close(leaked)
	mutants := defects()
	for _, c := range Cases() {
		t.Run(c.String(), func(t *testing.T) {
			without, with := mutantConfig(nil), mutantConfig(mutants[c.Rule])
			switch c.Rule {
			default:
				if bug, ok := plantedFor()[c.Rule]; ok {
					without, with = plantedConfig(t, bug.kind, ""), plantedConfig(t, bug.kind, bug.name)
				}
			case "I2":
				with = generous()
			case "O1":
				without, with = grouped(fsGroup), grouped(fsGroup+1)
			case "M11":
				without, with = publishing(always), publishing(atFirst)
			case "D6":
				without, with = plantedConfig(t, provisioned, ""), missingElsewhere(t)
			case "X3":
				without = mutantConfig(reporting(volume.HealthNormal, "Fine"))
			}
			without.leakTimeout = 0
			healthy := try(t, c, without)
			require.Empty(t, healthy.failures, "a plugin without a defect")
			require.Empty(t, healthy.skipped)
			broken := try(t, c, with)
			require.NotEmpty(t, broken.failures, "the defect was not seen (%s)", broken.skipped)
			assert.Contains(t, broken.failures[0], "rule "+c.Rule+" is broken: "+c.Sentence)
		})
	}
}

// groupedWorld is a world in which files have groups.
type groupedWorld struct {
	*fake.Mounter
	group atomic.Int64
}

func (w *groupedWorld) Group(string) (int64, bool, error) { return w.group.Load(), true, nil }

func (w *groupedWorld) CanGive() bool { return true }

// grouped is a plugin that gives what it is asked to give to gid.
func grouped(gid int64) Config {
	world := &groupedWorld{}
	config := mutantConfig(func(m *mutant) {
		world.Mounter = m.world
		m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
			if args.FsGroup != nil {
				world.group.Store(gid)
			}
			return made.SetUp(ctx, args)
		})
	})
	world.Mounter, _ = config.World.(*fake.Mounter)
	config.World, config.FSGroup = world, true
	return config
}

// TestTheDefectsThatCSISanityDoesNotSee are defects that were planted to try that suite. It detected none of them.
func TestTheDefectsThatCSISanityDoesNotSee(t *testing.T) {
	rules, mutants := map[string]Case{}, defects()
	for _, c := range Cases() {
		rules[c.Rule] = c
	}
	for _, row := range []struct {
		defect, rule string
		arrange      func(*mutant)
	}{
		{"read-only is ignored", "R1", mutants["R1"]},
		{"a directory is made and nothing mounted", "M1", func(m *mutant) {
			m.mounter = withSetUp(func(_ context.Context, made volume.Mounter, _ volume.MounterArgs) error {
				return m.world.MkdirAll(made.GetPath(), 0o755)
			})
		}},
		{"all volumes share one directory", "M6", mutants["M6"]},
		{"each set-up wipes the data", "M3", func(m *mutant) {
			m.mounter = withSetUp(func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				err := made.SetUp(ctx, args)
				_ = m.world.Remove(made.GetPath() + "/file")
				return err
			})
		}},
		{"mounts are stacked", "M3", mutants["M3"]},
		{"a busy mount is taken off lazily", "U8", mutants["U8"]},
		{"a clone copies nothing", "P4", mutants["P4"]},
		{"a clone is its source", "P4", (*mutant).handingOutTheSource},
		{"deleted storage stays", "D3", mutants["D3"]},
		{"all figures are zero", "X2", mutants["X2"]},
		{"a status is of another program", "X3", reporting("healthy", "Fine")},
		{"a reason is a sentence", "X3", reporting(volume.HealthNormal, "the disk is fine")},
		{"a reason is missing", "X3", reporting(volume.HealthUnknown, "")},
		{"a restart forgets what is attached", "A3", mutants["A3"]},
		{"there is no lock for a volume", "M5", mutants["M5"]},
	} {
		t.Run(row.defect, func(t *testing.T) {
			broken := try(t, rules[row.rule], mutantConfig(row.arrange))
			require.NotEmpty(t, broken.failures, "the defect was not seen (%s)", broken.skipped)
			assert.Contains(t, broken.failures[0], "rule "+row.rule+" is broken: ")
		})
	}
}

// sharedOf is where what all pods share is mounted by a plugin without a lock.
func sharedOf(path string) string {
	root, _, _ := strings.Cut(path, "/pods/")
	return root + "/shared"
}

// unlocked looks whether a mount that all pods share is there, and makes it if not.
func (m *mutant) unlocked(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
	mounter, shared := Yielding(m.world), sharedOf(made.GetPath())
	mounted, err := mounter.IsMountPoint(ctx, shared)
	if !mounted {
		err = mounter.Mount(ctx, mount.Request{Source: "tmpfs", Target: shared, FSType: "tmpfs"})
	}
	err = errors.Join(err, made.SetUp(ctx, args))
	if mounted, lookErr := mounter.IsMountPoint(ctx, shared); !mounted {
		err = errors.Join(err, lookErr, errors.New("what all pods share is gone"))
	}
	return err
}

// unlockedTearDown takes away what all pods share where no pod is left.
func (m *mutant) unlockedTearDown(ctx context.Context, made volume.Unmounter) error {
	mounter, shared := Yielding(m.world), sharedOf(made.GetPath())
	err := made.TearDown(ctx)
	table, listErr := mounter.List(ctx)
	pods := strings.TrimSuffix(shared, "shared") + "pods/"
	if slices.ContainsFunc(table, func(p mount.MountPoint) bool { return strings.HasPrefix(p.Path, pods) }) {
		return errors.Join(err, listErr)
	}
	if unmountErr := mounter.Unmount(ctx, shared, mount.UnmountOptions{}); !errors.Is(unmountErr, mount.ErrNotMounted) {
		err = errors.Join(err, unmountErr)
	}
	return errors.Join(err, listErr)
}

// atFirst and always say when a plugin publishes content.
func atFirst(args volume.MounterArgs) bool { return !args.IsRemount }

func always(volume.MounterArgs) bool { return true }

// publishing is a plugin whose content is its own, and which writes it where when says so.
func publishing(when func(volume.MounterArgs) bool) Config {
	var edition atomic.Int64
	content := func(spec *volume.Spec) string { return fmt.Sprintf("edition %d of %s", edition.Load(), spec.Name()) }
	config := mutantConfig(func(m *mutant) {
		m.mounter = func(made volume.Mounter, spec *volume.Spec) volume.Mounter {
			return &setUpFunc{made, func(ctx context.Context, made volume.Mounter, args volume.MounterArgs) error {
				err := made.SetUp(ctx, args)
				if err == nil && when(args) {
					err = m.world.WriteFile(made.GetPath()+"/news", []byte(content(spec)), 0o644)
				}
				return err
			}}
		}
	})
	config.Content = func(spec *volume.Spec, _ *v1.Pod) map[string]string { return map[string]string{"news": content(spec)} }
	config.ChangeContent = func(testing.TB, *volume.Spec) { edition.Add(1) }
	return config
}

// The cases that write a file read the content of a plugin whose content is its own.
func TestContentOfThePluginsOwnIsLookedAt(t *testing.T) {
	config := publishing(always)
	healthy := config
	config.Content = func(*volume.Spec, *v1.Pod) map[string]string { return map[string]string{"news": "something else"} }
	for _, c := range Cases() {
		if !strings.Contains(" M1 M3 M4 M5 M6 M9 M10 U1 ", " "+c.Rule+" ") {
			continue
		}
		assert.Empty(t, try(t, c, healthy).failures, c.Rule)
		broken := try(t, c, config)
		require.NotEmpty(t, broken.failures, c.Rule)
		assert.Contains(t, broken.failures[0], "instead of \"something else\"", c.Rule)
	}
}

// generous is a plugin that claims every spec.
func generous() Config {
	config := mutantConfig(nil)
	world := fake.NewMounter(fake.MounterOptions{})
	config.World = world
	config.NewPlugin = func(testing.TB) volume.VolumePlugin {
		return fake.NewPlugin(fake.PluginOptions{Mounter: world, AlsoSupports: func(*volume.Spec) bool { return true }})
	}
	return config
}

// TestDeclarationsThatAreNotTrueAreCaught holds every way in which a declaration can be wrong; I7 of defects is one more.
func TestDeclarationsThatAreNotTrueAreCaught(t *testing.T) {
	var declared Case
	for _, c := range identityCases() {
		if c.Rule == "I7" {
			declared = c
		}
	}
	for want, arrange := range map[string]func(*mutant){
		`CanSupport is false for volume "bare" with nfs`: func(m *mutant) {
			m.kinds = func(k []volume.SpecKind) []volume.SpecKind { return append(k, volume.SpecKind{Source: "nfs"}) }
		},
		`CanSupport is true for volume "bare" with flexVolume`: func(m *mutant) {
			m.supports = func(s *volume.Spec) bool { return volume.SpecKind{Source: "flexVolume"}.Matches(s) }
		},
		"CanSupport is true for volume": func(m *mutant) {
			m.kinds = func(k []volume.SpecKind) []volume.SpecKind { return k[1:] }
		},
	} {
		r := try(t, declared, mutantConfig(arrange))
		require.Len(t, r.failures, 1, want)
		assert.Contains(t, r.failures[0], want)
	}
	r := try(t, declared, mutantConfig(func(m *mutant) { m.kinds = func([]volume.SpecKind) []volume.SpecKind { return nil } }))
	assert.Empty(t, r.failures, "who declares nothing is asked about everything")
}

func TestRequiredCapabilityThatIsAbsentFails(t *testing.T) {
	config := fakeConfig(fake.NewMounter(fake.MounterOptions{}), volume.CapExpand)
	config.RootDir = "/node"
	config.Require = volume.CapExpand | volume.CapBlock
	r := &recorder{TB: t}
	checkRequired(r, config)
	require.Len(t, r.failures, 1)
	assert.Contains(t, r.failures[0], `Config.Require lists expand, which plugin "example.com/fake" does not have`)
}

func TestCaseThatDoesNotConcernAPluginIsSkippedWithTheReason(t *testing.T) {
	world := fake.NewMounter(fake.MounterOptions{})
	config := fakeConfig(world, volume.CapAttach)
	config.World, config.RootDir = world, "/node"
	for _, c := range attachCases() {
		r := try(t, c, config)
		assert.Empty(t, r.failures)
		assert.Equal(t, `plugin "example.com/fake" does not have attach`, r.skipped)
	}
}

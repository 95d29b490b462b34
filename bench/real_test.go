package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bench/internal/limits"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// This file has real mounts: tmpfs and binds, by a plugin that does no more than make and take away what it must.

const realName = "bench/real"

// realPlugin mounts a tmpfs for an emptyDir, and binds the directory of a hostPath.
type realPlugin struct {
	host    volume.VolumeHost
	mounter *mount.Mounter
	// again says that what is mounted is set up again after a restart.
	again bool
}

func (p *realPlugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}
func (*realPlugin) GetPluginName() string                        { return realName }
func (*realPlugin) GetVolumeName(s *volume.Spec) (string, error) { return s.Name(), nil }
func (*realPlugin) CanSupport(s *volume.Spec) bool               { return s.Volume != nil }
func (*realPlugin) SpecKinds() []volume.SpecKind {
	return []volume.SpecKind{{Source: "emptyDir"}, {Source: "hostPath", Scope: volume.PodScope}}
}

func (*realPlugin) SetUpIsMount(*volume.Spec) bool       { return true }
func (*realPlugin) MountDeviceIsMount(*volume.Spec) bool { return false }
func (p *realPlugin) CanReuse(*volume.Spec) bool         { return !p.again }

func (p *realPlugin) NewMounter(s *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	m := p.at(pod.UID, s.Name())
	m.request = mount.Request{Source: "tmpfs", Target: m.path, FSType: "tmpfs", Options: []string{"size=1m"}}
	if s.Volume.HostPath != nil {
		m.request = mount.Request{Source: s.Volume.HostPath.Path, Target: m.path, Options: []string{"bind"}}
	}
	return m, nil
}

func (p *realPlugin) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	return p.at(uid, name), nil
}

func (p *realPlugin) at(uid types.UID, name string) *realVolume {
	return &realVolume{mounter: p.mounter, path: p.host.GetPodVolumeDir(uid, realName, name), again: p.again}
}

type realVolume struct {
	volume.MetricsNil
	mounter *mount.Mounter
	path    string
	request mount.Request
	again   bool
}

func (v *realVolume) GetPath() string                  { return v.path }
func (v *realVolume) GetAttributes() volume.Attributes { return volume.Attributes{} }
func (v *realVolume) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return v.SetUpAt(ctx, v.path, args)
}

func (v *realVolume) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	if v.again {
		if mounted, err := v.mounter.IsMountPoint(ctx, dir); err == nil && mounted {
			return nil
		}
	}
	return v.mounter.Mount(ctx, v.request)
}
func (v *realVolume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.path) }
func (v *realVolume) TearDownAt(ctx context.Context, dir string) error {
	if err := v.mounter.Unmount(ctx, dir, mount.UnmountOptions{}); err != nil {
		return err
	}
	return v.mounter.RemoveTarget(ctx, dir)
}

// realNode is a directory on a tmpfs with a node's root, its records and what binds are of.
type realNode struct {
	dir string
	// again says that volumes are set up again after a restart.
	again bool
}

func newRealNode(b *testing.B) realNode {
	dir := scratch(b)
	must(b, unix.Mount("bench", dir, "tmpfs", 0, "mode=700"))
	b.Cleanup(func() { must(b, unix.Unmount(dir, unix.MNT_DETACH)) })
	must(b, os.Mkdir(filepath.Join(dir, "source"), 0o755))
	return realNode{dir: dir}
}

// pods are pods with so many volumes each; every other one is a bind when binds says so.
func (n realNode) pods(pods, vols int, binds bool) []*v1.Pod {
	ps := nodePods(0, pods, vols)
	for _, p := range ps {
		for i := range p.Spec.Volumes {
			p.Spec.Volumes[i].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}
			if binds && i%2 == 1 {
				p.Spec.Volumes[i].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: filepath.Join(n.dir, "source")}}
			}
		}
	}
	return ps
}

// start runs a manager of the node, whose records are below its directory.
func (n realNode) start(b *testing.B) *ourManager {
	mounter := mount.New(mount.Options{})
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(n.dir, "root"), NodeName: "node"})
	must(b, err)
	plugins := volume.NewVolumePluginMgr(host)
	must(b, plugins.InitPlugins(b.Context(), &realPlugin{mounter: mounter, again: n.again}))
	return startOurs(b, plugins, volumemanager.Options{RuntimeDir: filepath.Join(n.dir, "records"), Mounter: mounter})
}

func (m *ourManager) empty(ps []*v1.Pod) {
	for _, p := range ps {
		must(m.tb, m.RemovePod(p.UID))
	}
	must(m.tb, m.WaitForNodeEmpty(m.ctx))
}

// BenchmarkManagerReal mounts and unmounts real tmpfs volumes, one for each pod: by the whole manager with its records, and
// by bare system calls one after the other.
func BenchmarkManagerReal(b *testing.B) {
	for _, volumes := range []int{1000, 8000} {
		b.Run(fmt.Sprintf("volumes=%d/impl=ours", volumes), func(b *testing.B) {
			n := newRealNode(b)
			ps := n.pods(volumes, 1, false)
			m := n.start(b)
			m.PodsComplete()
			var up time.Duration
			defer countCPU(b)()
			for b.Loop() {
				began := time.Now()
				m.fill(ps)
				up += time.Since(began)
				m.empty(ps)
			}
			b.ReportMetric(float64(up.Nanoseconds())/float64(b.N), "up-ns")
			m.stop()
		})
		b.Run(fmt.Sprintf("volumes=%d/impl=limit", volumes), func(b *testing.B) {
			n := newRealNode(b)
			var up time.Duration
			defer countCPU(b)()
			for b.Loop() {
				began := time.Now()
				for i := range volumes {
					dir := n.bare(i)
					must(b, os.MkdirAll(dir, 0o750))
					must(b, limits.Tmpfs(dir))
				}
				up += time.Since(began)
				for i := range volumes {
					must(b, unix.Unmount(n.bare(i), unix.UMOUNT_NOFOLLOW))
					must(b, unix.Rmdir(n.bare(i)))
				}
			}
			b.ReportMetric(float64(up.Nanoseconds())/float64(b.N), "up-ns")
		})
	}
}

func (n realNode) bare(i int) string { return fmt.Sprintf("%s/bare/%d/volumes/v", n.dir, i) }

// BenchmarkManagerCold is the time from the start of a manager until 1,000 pods with ten volumes each, tmpfs and binds, have
// all of them.
func BenchmarkManagerCold(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		n := newRealNode(b)
		ps := n.pods(1000, 10, true)
		b.StartTimer()
		m := n.start(b)
		m.fill(ps)
		b.StopTimer()
		m.PodsComplete()
		m.empty(ps)
		m.stop()
		b.StartTimer()
	}
}

// BenchmarkManagerRestart is the time from the start of a manager until it knows all volumes that an earlier one has left
// mounted.
func BenchmarkManagerRestart(b *testing.B) {
	const volumes = 8000
	n := newRealNode(b)
	ps := n.pods(volumes/8, 8, false)
	m := n.start(b)
	m.PodsComplete()
	m.fill(ps)
	m.stop()
	for b.Loop() {
		m = n.start(b)
		for _, p := range ps {
			for len(m.PodStatus(p.UID)) != len(p.Spec.Volumes) {
				time.Sleep(100 * time.Microsecond)
			}
		}
		b.StopTimer()
		m.stop()
		b.StartTimer()
	}
	b.StopTimer()
	m = n.start(b)
	m.PodsComplete()
	must(b, m.WaitForNodeEmpty(m.ctx))
	m.stop()
}

// BenchmarkManagerRestartReady is the time from the start of a manager until 8,000 pods, whose volumes an earlier one has left
// mounted, are ready again: as the plugin says that they need no set-up, and as each is set up again.
func BenchmarkManagerRestartReady(b *testing.B) {
	for _, again := range []bool{false, true} {
		b.Run(fmt.Sprintf("volumes=8000/setup=%t", again), func(b *testing.B) {
			n := newRealNode(b)
			n.again = again
			ps := n.pods(8000, 1, false)
			m := n.start(b)
			m.PodsComplete()
			m.fill(ps)
			m.stop()
			counted := countCPU(b)
			for b.Loop() {
				m = n.start(b)
				m.fill(ps)
				b.StopTimer()
				m.stop()
				b.StartTimer()
			}
			b.StopTimer()
			counted()
			m = n.start(b)
			m.PodsComplete()
			must(b, m.WaitForNodeEmpty(m.ctx))
			m.stop()
		})
	}
}

// startOurs runs a manager with plugins, and ends it with the benchmark at the latest.
func startOurs(tb testing.TB, plugins *volume.VolumePluginMgr, o volumemanager.Options) *ourManager {
	m := &ourManager{tb: tb, ctx: deadline(tb), ended: make(chan error, 1)}
	var err error
	o.NoRecords = o.RuntimeDir == "" // kubelet keeps none; where records are measured, their directory is named
	m.Manager, err = volumemanager.New(plugins, o)
	must(tb, err)
	var run context.Context
	run, m.end = context.WithCancel(m.ctx)
	go func() { m.ended <- m.Run(run) }()
	return m
}

func (m *ourManager) stop() {
	m.end()
	if err := <-m.ended; err != nil && !errors.Is(err, context.Canceled) {
		m.tb.Error(err)
	}
}

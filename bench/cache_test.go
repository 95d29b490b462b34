package bench

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	k8scache "k8s.io/kubernetes/pkg/kubelet/volumemanager/cache"
	k8svolume "k8s.io/kubernetes/pkg/volume"
	k8sutil "k8s.io/kubernetes/pkg/volume/util"
	k8sexecutor "k8s.io/kubernetes/pkg/volume/util/operationexecutor"
	k8stypes "k8s.io/kubernetes/pkg/volume/util/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// states is a desired and an actual state of a node, of one implementation. What changes something comes with what undoes
// it, so that the size stays the same.
type states interface {
	// fill makes all pods want their volumes and mounts them.
	fill(es []entry)
	// prepare attaches and stages the volume of the entry that attaching and mounting is measured with.
	prepare(e entry)
	ops() map[string]func(e entry)
}

// entry is one volume of one pod.
type entry struct {
	pod  *v1.Pod
	vol  *v1.Volume
	name v1.UniqueVolumeName
}

func entries(from, pods, vols int) []entry {
	var es []entry
	for i := range pods {
		p := nodePod(from+i, vols)
		for j := range p.Spec.Volumes {
			v := &p.Spec.Volumes[j]
			es = append(es, entry{p, v, v1.UniqueVolumeName(instantName + "/" + v.Name)})
		}
	}
	return es
}

func (e entry) devicePath() string { return "/dev/" + e.vol.Name }
func (e entry) stagePath() string  { return "/staged/" + e.vol.Name }

const (
	opAdd       = "AddPodToVolume+Delete"
	opToMount   = "all-to-mount"
	opMounted   = "all-mounted"
	opNames     = "names-of-pod"
	opSame      = "names-of-same-pod"
	opOfPod     = "mounted-of-pod"
	opRemount   = "MarkRemountRequired"
	opWanted    = "DSW.PodExistsInVolume"
	opDecide    = "ASW.PodExistsInVolume"
	opAttach    = "MarkVolumeAsAttached+Detached"
	opMount     = "MarkVolumeAsMounted+Unmounted"
	opUnmounted = "GetUnmountedVolumes"
)

// manyStates makes each implementation of states. "ours" yields where it can, "ours-copied" has the same answers copied,
// as Kubernetes has them.
var manyStates = []struct {
	impl string
	make func(b *testing.B, extra entry) states
}{
	{"k8s", func(b *testing.B, extra entry) states { return newK8sStates(b, extra) }},
	{"ours", func(b *testing.B, extra entry) states { return newOurStates(b, extra) }},
	{"ours-copied", func(b *testing.B, extra entry) states { return copiedStates{newOurStates(b, extra)} }},
	{"limit", func(_ *testing.B, extra entry) states { return newBareStates(extra) }},
}

// BenchmarkCache measures both states of a node whose volumes are all mounted. Queries are about another pod each time, as
// the pods of a node are, so that what they look at is not in the processor's caches on a large node. Those of opSame are
// about the same pod each time: what then grows with the node is the work, and not the way to memory.
func BenchmarkCache(b *testing.B) {
	for _, pods := range []int{100, 1000, 10_000} {
		es := entries(0, pods, 5)
		extra := entries(pods, 1, 1)[0]
		for _, many := range manyStates {
			s := many.make(b, extra)
			s.fill(es)
			runtime.GC()
			ops := s.ops()
			for _, op := range slices.Sorted(maps.Keys(ops)) {
				if op == opMount {
					s.prepare(extra)
				}
				b.Run(fmt.Sprintf("op=%s/pods=%d/impl=%s", op, pods, many.impl), func(b *testing.B) {
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						ops[op](es[i*7919%len(es)])
					}
				})
			}
			b.Run(fmt.Sprintf("op=%s/pods=%d/impl=%s", opSame, pods, many.impl), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					ops[opNames](es[len(es)/2])
				}
			})
		}
	}
}

// sink keeps the compiler from leaving work out.
var sink int

var logger = klog.Background()

// k8sStates are those of a kubelet.
type k8sStates struct {
	b     *testing.B
	dsw   k8scache.DesiredStateOfWorld
	asw   k8scache.ActualStateOfWorld
	extra entry
}

func newK8sStates(b *testing.B, extra entry) *k8sStates {
	plugins := k8sPlugins(b, &instantK8s{})
	return &k8sStates{
		b: b, dsw: k8scache.NewDesiredStateOfWorld(plugins, k8sutil.NewSELinuxLabelTranslator()),
		asw: k8scache.NewActualStateOfWorld("node", plugins), extra: extra,
	}
}

func k8sPodName(e entry) k8stypes.UniquePodName { return k8stypes.UniquePodName(e.pod.UID) }

func (s *k8sStates) want(e entry, spec *k8svolume.Spec) {
	_, err := s.dsw.AddPodToVolume(logger, k8sPodName(e), e.pod, spec, e.vol.Name, "", nil)
	must(s.b, err)
}

func (s *k8sStates) attach(e entry) {
	must(s.b, s.asw.MarkVolumeAsAttached(logger, e.name, k8svolume.NewSpecFromVolume(e.vol), "node", e.devicePath()))
}

func (s *k8sStates) prepare(e entry) {
	s.attach(e)
	must(s.b, s.asw.MarkDeviceAsMounted(e.name, e.devicePath(), e.stagePath(), ""))
}

func (s *k8sStates) mount(e entry, spec *k8svolume.Spec, mounter k8svolume.Mounter) {
	must(s.b, s.asw.MarkVolumeAsMounted(k8sexecutor.MarkVolumeOpts{
		PodName: k8sPodName(e), PodUID: e.pod.UID, VolumeName: e.name, Mounter: mounter,
		VolumeSpec: spec, VolumeMountState: k8sexecutor.VolumeMounted,
	}))
}

func (s *k8sStates) fill(es []entry) {
	for _, e := range es {
		spec := k8svolume.NewSpecFromVolume(e.vol)
		s.want(e, spec)
		s.prepare(e)
		s.mount(e, spec, &instantK8s{})
	}
}

func (s *k8sStates) ops() map[string]func(entry) {
	devicePath, mounter := s.extra.devicePath(), &instantK8s{}
	spec := k8svolume.NewSpecFromVolume(s.extra.vol)
	return map[string]func(entry){
		opAdd: func(entry) {
			s.want(s.extra, spec)
			s.dsw.DeletePodFromVolume(k8sPodName(s.extra), s.extra.name)
		},
		opToMount: func(entry) {
			for _, v := range s.dsw.GetVolumesToMount() {
				sink += len(v.PodName)
			}
		},
		opMounted: func(entry) {
			for _, v := range s.asw.GetAllMountedVolumes() {
				sink += len(v.PodName)
			}
		},
		opNames:   func(e entry) { sink += len(s.dsw.GetVolumeNamesForPod(k8sPodName(e))) },
		opOfPod:   func(e entry) { sink += len(s.asw.GetMountedVolumesForPod(k8sPodName(e))) },
		opRemount: func(e entry) { s.asw.MarkRemountRequired(logger, k8sPodName(e)) },
		opWanted:  func(e entry) { must(s.b, want(s.dsw.PodExistsInVolume(k8sPodName(e), e.name, ""), nil)) },
		opDecide: func(e entry) {
			ok, _, err := s.asw.PodExistsInVolume(logger, k8sPodName(e), e.name, resource.Quantity{}, "")
			must(s.b, want(ok, err))
		},
		opAttach: func(entry) {
			must(s.b, s.asw.MarkVolumeAsAttached(logger, s.extra.name, spec, "node", devicePath))
			s.asw.MarkVolumeAsDetached(s.extra.name, "node")
		},
		opMount: func(entry) {
			s.mount(s.extra, spec, mounter)
			must(s.b, s.asw.MarkVolumeAsUnmounted(k8sPodName(s.extra), s.extra.name))
		},
		opUnmounted: func(entry) { sink += len(s.asw.GetUnmountedVolumes()) },
	}
}

// ourStates are ours.
type ourStates struct {
	b     *testing.B
	dsw   *cache.DesiredStateOfWorld
	asw   *cache.ActualStateOfWorld
	extra entry
}

func newOurStates(b *testing.B, extra entry) *ourStates {
	plugins := ourPlugins(b, &instantOurs{})
	return &ourStates{
		b: b, dsw: cache.NewDesiredStateOfWorld(plugins, cache.Options{}),
		asw: cache.NewActualStateOfWorld("node", plugins, cache.Options{}), extra: extra,
	}
}

func podName(e entry) volume.UniquePodName { return volume.UniquePodName(e.pod.UID) }

func (s *ourStates) want(e entry, spec *volume.Spec) {
	_, err := s.dsw.AddPodToVolume(cache.AddPodOptions{
		Pod: e.pod, VolumeSpec: spec, OuterVolumeSpecName: e.vol.Name,
	})
	must(s.b, err)
}

func (s *ourStates) attach(e entry) {
	must(s.b, s.asw.MarkVolumeAsAttached(e.name, volume.NewSpecFromVolume(e.vol), "node", e.devicePath()))
}

func (s *ourStates) prepare(e entry) {
	s.attach(e)
	must(s.b, s.asw.MarkDeviceAsMounted(e.name, e.devicePath(), e.stagePath(), ""))
}

func (s *ourStates) mount(e entry, spec *volume.Spec, mounter volume.Mounter) {
	must(s.b, s.asw.MarkVolumeAsMounted(operationexecutor.MountedVolume{
		PodName: podName(e), PodUID: e.pod.UID, VolumeName: e.name, Mounter: mounter,
		VolumeSpec: spec, MountPath: e.vol.Name,
	}))
}

func (s *ourStates) fill(es []entry) {
	for _, e := range es {
		spec := volume.NewSpecFromVolume(e.vol)
		s.want(e, spec)
		s.prepare(e)
		s.mount(e, spec, &instantOurs{})
	}
}

func (s *ourStates) ops() map[string]func(entry) {
	devicePath, mounter := s.extra.devicePath(), &instantOurs{}
	spec := volume.NewSpecFromVolume(s.extra.vol)
	return map[string]func(entry){
		opAdd: func(entry) {
			s.want(s.extra, spec)
			s.dsw.DeletePodFromVolume(podName(s.extra), s.extra.name)
		},
		opToMount: func(entry) {
			for v := range s.dsw.AllVolumesToMount() {
				sink += len(v.PodName)
			}
		},
		opMounted: func(entry) {
			for v := range s.asw.AllMountedVolumes() {
				sink += len(v.PodName)
			}
		},
		opNames: func(e entry) {
			for v := range s.dsw.VolumesOfPod(podName(e)) {
				sink += len(v.VolumeName)
			}
		},
		opOfPod: func(e entry) {
			for v := range s.asw.VolumesOfPod(podName(e)) {
				sink += len(v.VolumeName)
			}
		},
		opRemount: func(e entry) { s.asw.MarkRemountRequired(podName(e)) },
		opWanted:  func(e entry) { must(s.b, want(s.dsw.PodExistsInVolume(podName(e), e.name), nil)) },
		opDecide: func(e entry) {
			ok, _, err := s.asw.PodExistsInVolume(podName(e), e.name, resource.Quantity{}, "")
			must(s.b, want(ok, err))
		},
		opAttach: func(entry) {
			must(s.b, s.asw.MarkVolumeAsAttached(s.extra.name, spec, "node", devicePath))
			s.asw.MarkVolumeAsDetached(s.extra.name, "node")
		},
		opMount: func(entry) {
			s.mount(s.extra, spec, mounter)
			must(s.b, s.asw.MarkVolumeAsUnmounted(podName(s.extra), s.extra.name))
		},
		opUnmounted: func(entry) { sink += len(s.asw.GetUnmountedVolumes()) },
	}
}

// copiedStates have the answers of ours copied.
type copiedStates struct{ *ourStates }

func (s copiedStates) ops() map[string]func(entry) {
	return map[string]func(entry){
		opToMount: func(entry) {
			for _, v := range s.dsw.GetVolumesToMount() {
				sink += len(v.PodName)
			}
		},
		opMounted: func(entry) {
			for _, v := range s.asw.GetAllMountedVolumes() {
				sink += len(v.PodName)
			}
		},
		opNames: func(e entry) { sink += len(s.dsw.GetVolumeNamesForPod(podName(e))) },
		opOfPod: func(e entry) { sink += len(s.asw.GetMountedVolumesForPod(podName(e))) },
	}
}

// bareStates answer the same questions from two maps, by pod and by volume, without locks, copies or checks.
type bareStates struct {
	byPod    map[string][]*bareRow
	byVolume map[string]*bareRow
	extra    entry
}

type bareRow struct {
	pod, volume, outer string
	remount            bool
}

func newBareStates(extra entry) *bareStates {
	return &bareStates{byPod: map[string][]*bareRow{}, byVolume: map[string]*bareRow{}, extra: extra}
}

func (s *bareStates) prepare(entry) {}

func (s *bareStates) fill(es []entry) {
	for _, e := range es {
		s.add(e)
	}
}

func (s *bareStates) add(e entry) {
	r := &bareRow{pod: string(e.pod.UID), volume: string(e.name), outer: e.vol.Name}
	s.byPod[r.pod] = append(s.byPod[r.pod], r)
	s.byVolume[r.volume] = r
}

func (s *bareStates) ops() map[string]func(entry) {
	change := func(entry) {
		s.add(s.extra)
		delete(s.byPod, string(s.extra.pod.UID))
		delete(s.byVolume, string(s.extra.name))
	}
	all := func(entry) {
		for _, r := range s.byVolume {
			sink += len(r.pod)
		}
	}
	ofPod := func(e entry) {
		for _, r := range s.byPod[string(e.pod.UID)] {
			sink += len(r.outer) + len(r.volume) + one(r.remount)
		}
	}
	both := func(e entry) { sink += one(s.byVolume[string(e.name)].pod == string(e.pod.UID)) }
	return map[string]func(entry){
		opAdd: change, opAttach: change, opMount: change, opToMount: all, opMounted: all,
		opNames: ofPod, opOfPod: ofPod, opRemount: ofPod, opWanted: both, opDecide: both,
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

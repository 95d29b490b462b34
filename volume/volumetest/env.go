package volumetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// nextID returns twelve hexadecimal digits that nothing else in this process has.
func nextID() string { return fmt.Sprintf("%012x", rand.Uint64()&(1<<48-1)) }

// env is the world of one case: a node of its own, with the plugin registered.
type env struct {
	*caseRun
	directory
	agent

	config Config
	host   *volume.Host
	id     string
}

func newEnv(t testing.TB, c Case, config Config) *env {
	t.Helper()
	if config.NewPlugin == nil {
		t.Fatalf("Config.NewPlugin is nil: give the constructor of the plugin")
	}
	if config.World == nil {
		config.World = KernelWorld()
	}
	if config.NodeName == "" {
		config.NodeName = "node-1"
	}
	run := &caseRun{t: t, c: c}
	e := &env{caseRun: run, directory: directory{caseRun: run, world: config.World, root: newRoot(t, config)}, config: config}
	host, err := volume.NewHost(volume.HostOptions{RootDir: e.root, NodeName: config.NodeName})
	if err != nil {
		t.Fatalf("making a host: %v", err)
	}
	e.host = host
	e.agent = e.newAgent()
	if missing := c.Needs &^ e.capabilities; missing != 0 {
		t.Skipf("plugin %q does not have %v", e.plugin.GetPluginName(), missing)
	}
	if config.NewSpec == nil && !e.capabilities.Has(volume.CapProvision) {
		t.Fatalf("Config.NewSpec is nil and plugin %q cannot provision: give a spec", e.plugin.GetPluginName())
	}
	return e
}

// newRoot makes a root directory for one case.
func newRoot(t testing.TB, config Config) string {
	t.Helper()
	if config.RootDir != "" {
		return filepath.Join(config.RootDir, "case-"+nextID())
	}
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatalf("temporary directory: %v", err)
	}
	return filepath.Join(root, "node")
}

// newAgent registers a new plugin value on the same host.
func (e *env) newAgent() agent {
	e.t.Helper()
	return e.newAgentOn(e.host)
}

func (e *env) newAgentOn(host *volume.Host) agent {
	e.t.Helper()
	a := agent{caseRun: e.caseRun, registry: volume.NewVolumePluginMgr(host), plugin: e.config.NewPlugin(e.t)}
	if err := a.registry.InitPlugins(e.ctx(), a.plugin); err != nil {
		e.t.Fatalf("Init of plugin %q: %v", a.plugin.GetPluginName(), err)
	}
	a.capabilities = a.registry.Capabilities(a.plugin.GetPluginName())
	return a
}

// crash replaces the agent: the memory of the old one is lost.
func (e *env) crash() {
	e.t.Helper()
	e.agent = e.newAgent()
}

func (e *env) cleanUp() {
	defer e.unmountRest()
	e.undoTo(0)
}

// newSpec returns a spec of new storage.
func (e *env) newSpec() *volume.Spec {
	e.t.Helper()
	if e.config.NewSpec != nil {
		return e.config.NewSpec(e.t)
	}
	return volume.NewSpecFromPersistentVolume(e.provision(e.volumeOptions()), false)
}

// volumeOptions returns the options for a volume of one case.
func (e *env) volumeOptions() volume.VolumeOptions {
	if e.config.NewVolumeOptions != nil {
		return e.config.NewVolumeOptions(e.t)
	}
	options := defaultOptions()
	options.Parameters = maps.Clone(e.config.Parameters)
	return options
}

// defaultOptions returns the options for a small volume that one node uses.
func defaultOptions() volume.VolumeOptions {
	name := "volumetest-" + nextID()
	return volume.VolumeOptions{
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
		PVName:                        name,
		PVC: &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources: v1.VolumeResourceRequirements{
					Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("64Mi")},
				},
			},
		},
	}
}

// provision makes a volume, which is deleted after the case.
func (e *env) provision(options volume.VolumeOptions) *v1.PersistentVolume {
	e.t.Helper()
	pv, err := e.provisioner(options).Provision(e.ctx(), nil, nil)
	e.must("Provision", err)
	if pv == nil {
		e.broken("Provision returned neither a volume nor an error")
	}
	e.later(func() { e.tryDelete(volume.NewSpecFromPersistentVolume(pv, false)) })
	return pv
}

// copySpec returns a spec that shares nothing with spec.
func copySpec(spec *volume.Spec) *volume.Spec {
	return &volume.Spec{
		Volume:           spec.Volume.DeepCopy(),
		PersistentVolume: spec.PersistentVolume.DeepCopy(),
		ReadOnly:         spec.ReadOnly,
	}
}

// newPod returns a pod with a UID of its own.
func newPod() *v1.Pod {
	id := nextID()
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "pod-" + id, Namespace: "default", UID: types.UID("00000000-0000-4000-8000-" + id),
	}}
}

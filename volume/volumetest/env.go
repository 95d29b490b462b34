package volumetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// nextID returns twelve hexadecimal digits that nothing else in this process has.
func nextID() string { return fmt.Sprintf("%012x", rand.Uint64()&(1<<48-1)) }

// env is the world of one case: a node of its own, with the plugin registered.
type env struct {
	t      testing.TB
	c      Case
	config Config
	world  World
	root   string
	id     string
	host   *volume.Host

	agent
	undo []func()
}

// agent is one life of the node's process.
type agent struct {
	registry     *volume.VolumePluginMgr
	plugin       volume.VolumePlugin
	capabilities volume.Capabilities
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
	e := &env{t: t, c: c, config: config, world: config.World}
	e.root = e.newRoot()
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

// newRoot returns a directory that no other case has.
func (e *env) newRoot() string {
	if e.config.RootDir != "" {
		return filepath.Join(e.config.RootDir, "case-"+nextID())
	}
	root, err := filepath.EvalSymlinks(e.t.TempDir())
	if err != nil {
		e.t.Fatalf("temporary directory: %v", err)
	}
	return filepath.Join(root, "node")
}

// newAgent registers a new plugin value on the same host.
func (e *env) newAgent() agent {
	e.t.Helper()
	a := agent{registry: volume.NewVolumePluginMgr(e.host), plugin: e.config.NewPlugin(e.t)}
	if err := a.registry.InitPlugins(e.ctx(), a.plugin); err != nil {
		e.t.Fatalf("Init of plugin %q: %v", a.plugin.GetPluginName(), err)
	}
	a.capabilities = a.registry.Capabilities(a.plugin.GetPluginName())
	return a
}

// ctx is the context of the calls under test.
func (e *env) ctx() context.Context { return e.t.Context() }

// crash replaces the agent: what the old one had in memory is gone.
func (e *env) crash() {
	e.t.Helper()
	e.agent = e.newAgent()
}

// broken fails the case: its rule does not hold.
func (e *env) broken(format string, args ...any) {
	e.t.Helper()
	e.t.Fatalf("%s\nrule %s is broken: %s", fmt.Sprintf(format, args...), e.c.Rule, e.c.Sentence)
}

// must fails the case when a call that has to succeed did not.
func (e *env) must(call string, err error) {
	e.t.Helper()
	if err != nil {
		e.broken("%s: %v", call, err)
	}
}

// later registers what leaves the machine clean when the case fails midway.
func (e *env) later(f func()) { e.undo = append(e.undo, f) }

func (e *env) cleanUp() {
	defer e.unmountRest()
	e.undoTo(0)
}

// undoTo undoes what was registered, the last first, until n are left.
func (e *env) undoTo(n int) {
	for len(e.undo) > n {
		last := e.undo[len(e.undo)-1]
		e.undo = e.undo[:len(e.undo)-1]
		last()
	}
}

// unmountRest takes off what a broken plugin has left mounted, deepest first: the directory of the test is emptied soon,
// and what is mounted in it must not be.
func (e *env) unmountRest() {
	world, ok := e.world.(interface {
		Unmount(ctx context.Context, target string, options mount.UnmountOptions) error
	})
	if !ok {
		return
	}
	ctx := e.afterwards()
	table, err := e.world.List(ctx)
	if err != nil {
		e.t.Logf("clean-up: reading the mount table: %v", err)
	}
	for _, m := range slices.Backward(table) {
		if !e.beneathRoot(m.Path) {
			continue
		}
		err := world.Unmount(ctx, m.Path, mount.UnmountOptions{Lazy: true})
		if err != nil && !errors.Is(err, mount.ErrNotMounted) {
			e.t.Logf("clean-up: %v", err)
		}
	}
}

// newSpec returns a spec of storage of its own.
func (e *env) newSpec() *volume.Spec {
	e.t.Helper()
	if e.config.NewSpec != nil {
		return e.config.NewSpec(e.t)
	}
	return volume.NewSpecFromPersistentVolume(e.provision(e.volumeOptions()), false)
}

// volumeOptions says what to provision.
func (e *env) volumeOptions() volume.VolumeOptions {
	if e.config.NewVolumeOptions != nil {
		return e.config.NewVolumeOptions(e.t)
	}
	options := defaultOptions()
	options.Parameters = maps.Clone(e.config.Parameters)
	return options
}

// defaultOptions ask for a small volume that one node uses.
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

// provisioner returns what makes a volume.
func (e *env) provisioner(options volume.VolumeOptions) volume.Provisioner {
	e.t.Helper()
	provisioner, err := e.provisionable().NewProvisioner(options)
	e.must("NewProvisioner", err)
	return provisioner
}

// provisionable returns the plugin as one that makes volumes.
func (e *env) provisionable() volume.ProvisionableVolumePlugin {
	e.t.Helper()
	plugin, err := e.registry.FindProvisionablePluginByName(e.plugin.GetPluginName())
	e.must("finding the provisioner", err)
	return plugin
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

// tryDelete deletes a volume that the suite has provisioned, if the plugin can.
func (e *env) tryDelete(spec *volume.Spec) {
	plugin, err := e.registry.FindDeletablePluginBySpec(spec)
	if err != nil {
		return
	}
	deleter, err := plugin.NewDeleter(spec)
	if err != nil {
		return
	}
	if err := deleter.Delete(context.WithoutCancel(e.ctx())); err != nil {
		e.t.Logf("clean-up: deleting volume %q: %v", spec.Name(), err)
	}
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

// beneathRoot reports whether path lies in the directory of this case.
func (e *env) beneathRoot(path string) bool { return strings.HasPrefix(path, e.root+"/") }

// exists reports whether something is at path.
func (e *env) exists(path string) bool {
	e.t.Helper()
	_, err := e.world.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.t.Fatalf("looking at %s: %v", path, err)
	}
	return err == nil
}

// namesIn returns the names in a directory, none where it is not there or the world cannot tell.
func (e *env) namesIn(dir string) []string {
	e.t.Helper()
	world, ok := e.world.(lister)
	if !ok {
		return nil
	}
	entries, err := world.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.t.Fatalf("reading %s: %v", dir, err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// mountsAt returns the mounts at path itself.
func (e *env) mountsAt(path string) []mount.MountPoint {
	e.t.Helper()
	return e.mounts(func(m mount.MountPoint) bool { return m.Path == path })
}

// mountsBeneathRoot returns all mounts in the directory of this case.
func (e *env) mountsBeneathRoot() []mount.MountPoint {
	e.t.Helper()
	return e.mounts(func(m mount.MountPoint) bool { return e.beneathRoot(m.Path) })
}

func (e *env) mounts(keep func(mount.MountPoint) bool) []mount.MountPoint {
	e.t.Helper()
	table, err := e.world.List(e.ctx())
	if err != nil {
		e.t.Fatalf("reading the mount table: %v", err)
	}
	var kept []mount.MountPoint
	for _, m := range table {
		if keep(m) {
			kept = append(kept, m)
		}
	}
	return kept
}

// expectMounted fails unless exactly one mount is at path.
func (e *env) expectMounted(path string) {
	e.t.Helper()
	if n := len(e.mountsAt(path)); n != 1 {
		e.broken("%d mounts are at %s instead of one", n, path)
	}
}

// expectNothingStacked fails where one mount in the directory of this case hides another.
func (e *env) expectNothingStacked() {
	e.t.Helper()
	seen := map[string]bool{}
	for _, m := range e.mountsBeneathRoot() {
		if seen[m.Path] {
			e.broken("one mount is on top of another at %s", m.Path)
		}
		seen[m.Path] = true
	}
}

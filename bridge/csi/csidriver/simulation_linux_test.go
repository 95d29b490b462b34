package csidriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// bridgeBug is a mistake that is planted between the volume manager and the bridge. The zero value is none.
type bridgeBug struct {
	// moves changes where each agent has its directories.
	moves func(volume.VolumeHost) volume.VolumeHost
	// wraps changes the plugin of each agent.
	wraps func(*Plugin) volume.VolumePlugin
	// rules change the table of errors.
	rules func([]rule) []rule
}

// simulatedNode is a node with the real volume manager over the real bridge, and an orchestrator.
type simulatedNode struct {
	dir     string // of what agents keep
	bug     bridgeBug
	random  *rand.Rand
	driver  *simulatedDriver
	mounter simulatedMounter
	store   *store.Memory
	notes   notes
	logger  *slog.Logger // to notes
	volumes []string

	agent  *simulatedAgent
	pods   map[string]*v1.Pod
	made   int
	steps  []string
	broken []string
}

// simulatedAgent is one life of the agent.
type simulatedAgent struct {
	driver  *Driver
	manager *volumemanager.Manager
	cancel  context.CancelFunc
	ended   chan error
	dead    atomic.Bool
}

// inTurn lets operations begin one after the other, each when what the one before began has come to rest, so that a seed is the same run
// nearly each time: which volume is looked at first when an agent starts is left open.
type inTurn struct{}

// OperationStarted implements operationexecutor.Observer.
func (inTurn) OperationStarted(info operationexecutor.OperationInfo) {
	time.Sleep(turnOf(fmt.Sprint(info.Kind, info.VolumeName, info.PodName)))
}

func (inTurn) OperationStepped(operationexecutor.OperationInfo, operationexecutor.Step)    {}
func (inTurn) OperationFinished(operationexecutor.OperationInfo, operationexecutor.Result) {}

// comeToRest returns when every goroutine waits, those of operations that wait for their turn excepted.
func comeToRest() {
	time.Sleep(2 * longestTurn)
	synctest.Wait()
}

// hasSecret gives every secret the same content.
type hasSecret struct{}

func (hasSecret) Secret(context.Context, string, string) (*v1.Secret, error) {
	return &v1.Secret{Data: map[string][]byte{"key": []byte(theSecret)}}, nil
}

// patience is how long the world takes at most to become what is wanted, once nothing goes wrong any more.
const patience = time.Hour

// simulatedOptions are those of a driver that attaches and stages, does one of both, or neither.
func simulatedOptions(dir string, mounter mount.Interface, kind int) fakedriver.Options {
	o := fakedriver.Options{Dir: dir, Mounter: mounter, Node: measures, Controller: makes}
	if kind%2 == 0 {
		o.Node = append(slices.Clone(o.Node), csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	if kind/2 == 0 {
		o.Controller = append(slices.Clone(o.Controller), csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	return o
}

func newSimulatedNode(ctx context.Context, dir string, seed uint64, bug bridgeBug) (*simulatedNode, error) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // It decides tests alone.
	mounter := simulatedMounter{fake.NewMounter(fake.MounterOptions{})}
	n := &simulatedNode{
		dir: filepath.Join(dir, "agent"), bug: bug, random: random, mounter: mounter, store: store.NewMemory(store.MemoryOptions{}), pods: map[string]*v1.Pod{},
	}
	n.logger = slog.New(slog.DiscardHandler)
	if seed%8 == 0 { // It takes a fifth of the time.
		n.logger = n.notes.logger()
	}
	storage := filepath.Join(dir, "storage")
	for _, path := range []string{storage, n.root()} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
	}
	n.driver = newSimulatedDriver(simulatedOptions(storage, mounter, max(0, random.IntN(6)-2)), seed, 2+random.IntN(8))
	return n, n.provision(ctx, 1+random.IntN(2))
}

func (n *simulatedNode) host() (volume.VolumeHost, error) {
	return volume.NewHost(volume.HostOptions{RootDir: n.root(), NodeName: "node-1"})
}

func (n *simulatedNode) root() string { return filepath.Join(n.dir, "root") }

// provision makes volumes with bound claims, before anything goes wrong.
func (n *simulatedNode) provision(ctx context.Context, count int) error {
	driver, plugin, err := n.connect(new(atomic.Bool))
	if err != nil {
		return err
	}
	driver.client.dial = func(Options) (connection, error) { return n.driver.Connection(), nil }
	host, err := n.host()
	if err != nil {
		return err
	}
	if err := plugin.Init(ctx, host); err != nil {
		return err
	}
	parameters := map[string]string{}
	for _, purpose := range []string{controllerPublishSecret, nodeStageSecret, nodePublishSecret} {
		parameters[parameterPrefix+purpose+secretNameEnd], parameters[parameterPrefix+purpose+secretSpaceEnd] = purpose, "system"
	}
	for i := range count {
		name := fmt.Sprintf("v%d", i+1)
		pvc := claim()
		pvc.Name, pvc.Namespace, pvc.Spec.VolumeName, pvc.Status.Phase = name, v1.NamespaceDefault, name, v1.ClaimBound
		provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: name, PVC: pvc, Parameters: parameters})
		if err != nil {
			return err
		}
		pv, err := provisioner.Provision(ctx, nil, nil)
		if err != nil {
			return err
		}
		created, err := n.store.Create(ctx, pvc)
		if err != nil {
			return err
		}
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: v1.NamespaceDefault, Name: name, UID: created.(*v1.PersistentVolumeClaim).UID}
		if _, err := n.store.Create(ctx, pv); err != nil {
			return err
		}
		n.volumes = append(n.volumes, name)
	}
	return driver.Close()
}

func (n *simulatedNode) connect(dead *atomic.Bool) (*Driver, *Plugin, error) {
	driver, err := New(Options{
		Socket: "/no/socket", Driver: fakedriver.Name, Secrets: hasSecret{}, Mounter: mortal{n.mounter, dead}, Logger: n.logger,
		CallTimeout: 91 * time.Second,
	})
	if err != nil {
		return nil, nil, err
	}
	driver.client.dial = n.driver.dial
	return driver, driver.Plugin(), nil
}

// start begins a life of the agent, which adds the pods that are wanted.
func (n *simulatedNode) start(ctx context.Context) error {
	a := &simulatedAgent{ended: make(chan error, 1)}
	driver, plugin, err := n.connect(&a.dead)
	if err != nil {
		return err
	}
	host, err := n.host()
	if err != nil {
		return err
	}
	if n.bug.moves != nil {
		host = n.bug.moves(host)
	}
	plugins, served := volume.NewVolumePluginMgr(host), volume.VolumePlugin(plugin)
	if n.bug.wraps != nil {
		served = n.bug.wraps(plugin)
	}
	for err = errors.New("not yet"); err != nil; err = plugins.InitPlugins(ctx, served) {
		time.Sleep(time.Second)
	}
	events := operationexecutor.NewEventPrinter(&n.notes)
	a.driver = driver
	a.manager, err = volumemanager.New(plugins, volumemanager.Options{
		Store: n.store, Mounter: mortal{n.mounter, &a.dead}, RuntimeDir: filepath.Join(n.dir, "run"), StateDir: filepath.Join(n.dir, "state"),
		Observer: inTurn{}, Logger: n.logger, Recorder: events, Resync: -1, Backoff: operationexecutor.Backoff{Max: 10 * time.Second, Jitter: -1},
	})
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(ctx)
	a.cancel = cancel
	go func() { a.ended <- a.manager.Run(running) }()
	n.agent = a
	for _, name := range n.wanted() {
		if err := a.manager.AddPod(ctx, n.pods[name]); err != nil {
			return err
		}
	}
	a.manager.PodsComplete()
	return nil
}

func (n *simulatedNode) wanted() []string {
	names := make([]string, 0, len(n.pods))
	for name := range n.pods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// stop ends the agent as its context does.
func (n *simulatedNode) stop() error {
	n.agent.cancel()
	err := <-n.agent.ended
	return errors.Join(err, n.agent.driver.Close())
}

// kill ends the agent where it stands: its calls are cut off, and what it keeps is what it had written by now. It is called when every
// goroutine waits.
func (n *simulatedNode) kill() error {
	copied := n.dir + "-copy"
	if err := os.CopyFS(copied, os.DirFS(n.dir)); err != nil {
		return err
	}
	n.agent.dead.Store(true)
	n.driver.cutAll()
	if err := n.agent.driver.Close(); err != nil {
		return err
	}
	if err := n.stop(); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(n.dir), os.Rename(copied, n.dir))
}

// step does something to the world, and checks what must hold when every goroutine waits.
func (n *simulatedNode) step(ctx context.Context) error {
	var err error
	choice := n.random.IntN(12)
	switch choice {
	case 0, 1, 2:
		err = n.add(ctx)
	case 3, 4:
		err = n.remove()
	case 5:
		n.says("the agent is killed")
		err = errors.Join(n.kill(), n.start(ctx))
	case 6:
		n.says("the agent is stopped")
		err = errors.Join(n.stop(), n.start(ctx))
	case 7:
		n.says("the driver is killed")
		n.driver.restart()
	case 8:
		n.says("the connections are cut")
		n.driver.cutAll()
	default:
		pause := []time.Duration{time.Millisecond, time.Second, 10 * time.Second, 3 * time.Minute}[n.random.IntN(4)]
		n.says("%v pass", pause)
		time.Sleep(pause)
	}
	comeToRest()
	n.look()
	return err
}

func (n *simulatedNode) says(format string, args ...any) {
	n.steps = append(n.steps, fmt.Sprintf(format, args...))
	n.driver.note(format, args...)
}

// add adds a pod with some of the volumes.
func (n *simulatedNode) add(ctx context.Context) error {
	if len(n.pods) == 3 {
		return nil
	}
	n.made++
	name := fmt.Sprintf("pod-%d", n.made)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: name, UID: types.UID(name)}}
	container := v1.Container{Name: "c"}
	for _, claim := range n.volumes[:1+n.random.IntN(len(n.volumes))] {
		container.VolumeMounts = append(container.VolumeMounts, v1.VolumeMount{Name: claim, MountPath: "/" + claim})
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	pod.Spec.Containers = []v1.Container{container}
	n.pods[name] = pod
	n.says("%s is added", name)
	return n.agent.manager.AddPod(ctx, pod)
}

func (n *simulatedNode) remove() error {
	if len(n.pods) == 0 {
		return nil
	}
	name := n.wanted()[n.random.IntN(len(n.pods))]
	delete(n.pods, name)
	n.says("%s is removed", name)
	return n.agent.manager.RemovePod(types.UID(name))
}

// look checks that what the manager says is so, and that no secret is where people read.
func (n *simulatedNode) look() {
	published := map[string]bool{}
	for _, v := range n.driver.Volumes() {
		for _, path := range v.Published {
			published[path] = true
		}
	}
	for name := range n.pods {
		for _, s := range n.agent.manager.PodStatus(types.UID(name)) {
			if s.Phase == volumemanager.PhaseMounted && !published[s.Path] {
				n.breaks("%s has %q by the manager, and nothing is published at %q", name, s.OuterName, s.Path)
			}
			if s.Err != nil && strings.Contains(s.Err.Error(), theSecret) {
				n.breaks("a status has the secret: %v", s.Err)
			}
		}
	}
	if n.notes.tell(theSecret) {
		n.breaks("a log or an event has the secret")
	}
	n.notes.reset()
}

func (n *simulatedNode) breaks(format string, args ...any) {
	n.broken = append(n.broken, fmt.Sprintf(format, args...))
}

// settle lets nothing go wrong any more: the pods get their volumes, and when they are gone nothing is left.
func (n *simulatedNode) settle(ctx context.Context) error {
	n.says("nothing goes wrong any more")
	n.driver.heal()
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, name := range n.wanted() {
		if err := n.agent.manager.WaitForAttachAndMount(patient, n.pods[name]); err != nil {
			return fmt.Errorf("%s does not get its volumes: %w", name, err)
		}
	}
	n.look()
	for len(n.pods) > 0 {
		if err := n.remove(); err != nil {
			return err
		}
	}
	if err := n.agent.manager.WaitForNodeEmpty(patient); err != nil {
		return fmt.Errorf("the node does not become empty: %w", err)
	}
	if err := n.stop(); err != nil {
		return err
	}
	n.driver.running.Wait()
	return n.expectEmpty(ctx)
}

// expectEmpty looks for what is left.
func (n *simulatedNode) expectEmpty(ctx context.Context) error {
	for _, v := range n.driver.Volumes() {
		if len(v.Staged)+len(v.Published)+len(v.Nodes) > 0 {
			n.breaks("volume %q is left at %q and %q, and attached to %q", v.ID, v.Staged, v.Published, v.Nodes)
		}
	}
	table, err := n.mounter.List(ctx)
	for _, m := range table {
		if m.Path != "/" {
			n.breaks("a mount is left at %q", m.Path)
		}
	}
	kept, walked := n.files()
	for path, text := range kept {
		if strings.Contains(text, theSecret) {
			n.breaks("%q has the secret", path)
		}
		if strings.HasSuffix(path, recordSuffix) {
			n.breaks("a record is left at %q", path)
		}
	}
	return errors.Join(err, walked)
}

// files returns what the agent has written.
func (n *simulatedNode) files() (map[string]string, error) {
	kept := map[string]string{}
	err := filepath.WalkDir(n.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // It is the test's own.
		kept[path] = string(text)
		return err
	})
	return kept, err
}

// simulate runs a seed, and returns the rules that were broken, and what happened.
func simulate(t *testing.T, dir string, seed uint64, bug bridgeBug) (broken, trace []string) {
	t.Helper()
	if bug.rules != nil {
		whole := rules
		defer func() { rules = whole }()
		rules = bug.rules(slices.Clone(rules))
	}
	synctest.Test(t, func(t *testing.T) {
		n, err := newSimulatedNode(t.Context(), dir, seed, bug)
		require.NoError(t, err)
		require.NoError(t, n.start(t.Context()))
		for range 5 + n.random.IntN(25) {
			if err := n.step(t.Context()); err != nil {
				n.breaks("%v", err)
				break
			}
		}
		if err := n.settle(t.Context()); err != nil {
			n.breaks("%v", err)
			n.driver.cutAll()
			_ = n.stop()
			n.driver.running.Wait()
		}
		broken, trace = append(n.driver.verdict(), n.broken...), n.driver.trace
	})
	return broken, trace
}

// simulateIn runs a seed in a directory of its own below dir.
func simulateIn(t *testing.T, dir string, seed uint64, bug bridgeBug) (broken, trace []string) {
	t.Helper()
	own := filepath.Join(dir, fmt.Sprint(seed))
	broken, trace = simulate(t, own, seed, bug)
	require.NoError(t, os.RemoveAll(own))
	return broken, trace
}

// inMemoryDir is a directory in a tmpfs, since a disk is slow to sync.
func inMemoryDir(t *testing.T) string {
	t.Helper()
	mounttest.RequireMounts(t)
	dir, mounter := t.TempDir(), mount.New(mount.Options{})
	require.NoError(t, mount.MountMemory(t.Context(), mounter, dir))
	t.Cleanup(func() {
		assert.NoError(t, mount.UnmountPath(context.WithoutCancel(t.Context()), mounter, dir, mount.UnmountOptions{}))
	})
	return dir
}

// The real volume manager runs over the real bridge, with a driver whose requests and answers are late, lost and repeated, and whose
// process and agent are killed. The variables of the environment are those of package simulation, but that there are a tenth of the seeds.
func TestSimulatedDriver(t *testing.T) {
	dir := inMemoryDir(t)
	if seed := simulation.Number(t, "SIMULATION_SEED", 0); seed != 0 {
		broken, trace := simulateIn(t, dir, seed, bridgeBug{})
		t.Logf("seed %d:\n%s", seed, strings.Join(trace, "\n"))
		assert.Empty(t, broken)
		return
	}
	first, seeds := simulation.Number(t, "SIMULATION_FIRST", 1), simulation.Number(t, "SIMULATION_SEEDS", 1000)/10
	defer t.Logf("%d seeds from %d on", seeds, first)
	for seed := first; seed < first+seeds; seed++ {
		broken, trace := simulateIn(t, dir, seed, bridgeBug{})
		require.Empty(t, broken, "SIMULATION_SEED=%d go test -run TestSimulatedDriver -v ./csidriver\n%s", seed, strings.Join(trace, "\n"))
	}
}

// wrapped is the bridge with a bug.
type wrapped struct {
	*Plugin

	// staged and gone change how a call that stages, and one that takes away, ends.
	staged, gone func(p *Plugin, path string, err error) error
}

// stagesWrongly is what a wrapped bridge stages with.
type stagesWrongly struct {
	attacher

	bug *wrapped
}

func (s stagesWrongly) MountDevice(ctx context.Context, spec *volume.Spec, devicePath, path string, args volume.DeviceMounterArgs) error {
	err := s.attacher.MountDevice(ctx, spec, devicePath, path, args)
	if s.bug.staged == nil {
		return err
	}
	return s.bug.staged(s.bug.Plugin, path, err)
}

func (s stagesWrongly) UnmountDevice(ctx context.Context, path string) error {
	err := s.attacher.UnmountDevice(ctx, path)
	if s.bug.gone == nil {
		return err
	}
	return s.bug.gone(s.bug.Plugin, path, err)
}

func (w *wrapped) stager() stagesWrongly { return stagesWrongly{attacher{&stager{w.Plugin}}, w} }

func (w *wrapped) NewAttacher() (volume.Attacher, error)               { return w.stager(), nil }
func (w *wrapped) NewDetacher() (volume.Detacher, error)               { return w.stager(), nil }
func (w *wrapped) NewDeviceMounter() (volume.DeviceMounter, error)     { return w.stager(), nil }
func (w *wrapped) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return w.stager(), nil }

// takesAwayWrongly is what a wrapped bridge unpublishes with.
type takesAwayWrongly struct {
	volume.Unmounter

	bug *wrapped
}

func (w *wrapped) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	made, err := w.Plugin.NewUnmounter(name, uid)
	return takesAwayWrongly{made, w}, err
}

func (u takesAwayWrongly) TearDown(ctx context.Context) error {
	err := u.Unmounter.TearDown(ctx)
	if u.bug.gone == nil {
		return err
	}
	return u.bug.gone(u.bug.Plugin, u.GetPath(), err)
}

// movedHost has the directories of plugins elsewhere in each life.
type movedHost struct {
	volume.VolumeHost

	life int64
}

func (h movedHost) GetPluginDir(name string) string {
	return fmt.Sprintf("%s/%d", h.VolumeHost.GetPluginDir(name), h.life)
}

// withoutUncertainty has an answer that did not come mean that there was no effect.
func withoutUncertainty(all []rule) []rule {
	for i, r := range all {
		if r.code == codes.DeadlineExceeded || r.code == codes.Unavailable {
			all[i].class = final
		}
	}
	return all
}

// Mistakes of the bridge, each planted, are found by the simulation.
func TestTheSimulationFindsBugs(t *testing.T) {
	forgets := func(p *Plugin, path string, err error) error {
		if isUncertain(err) {
			_ = p.node.mountPoints.records.remove(path)
			return errors.New("it was not begun")
		}
		return err
	}
	var lives atomic.Int64
	for name, bug := range map[string]bridgeBug{
		"each agent stages in another directory":     {moves: func(host volume.VolumeHost) volume.VolumeHost { return movedHost{host, lives.Add(1)} }},
		"a stage that was cut off is taken for none": {wraps: func(p *Plugin) volume.VolumePlugin { return &wrapped{Plugin: p, staged: forgets} }},
		"what is to be taken away is forgotten after a lost answer": {wraps: func(p *Plugin) volume.VolumePlugin {
			return &wrapped{Plugin: p, gone: forgets}
		}},
		"an answer that did not come is final": {rules: withoutUncertainty},
		"the publish context is not on record": {wraps: func(p *Plugin) volume.VolumePlugin {
			return &wrapped{Plugin: p, staged: func(p *Plugin, path string, err error) error {
				rec, _, _ := p.node.mountPoints.records.read(path)
				rec.PublishContext = nil
				_, _ = p.node.mountPoints.records.write(rec)
				return err
			}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := inMemoryDir(t)
			for seed := uint64(1); seed <= 500; seed++ {
				broken, _ := simulateIn(t, dir, seed, bug)
				if len(broken) > 0 {
					t.Logf("seed %d: %s", seed, broken[0])
					return
				}
			}
			t.Fatal("it is not found")
		})
	}
}

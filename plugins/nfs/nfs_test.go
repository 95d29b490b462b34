package nfs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// names is a resolver that knows a few.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	found, ok := n[host]
	if !ok {
		return nil, fmt.Errorf("no such host %q", host)
	}
	addresses := make([]netip.Addr, 0, len(found))
	for _, address := range found {
		addresses = append(addresses, netip.MustParseAddr(address))
	}
	return addresses, nil
}

var pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}}

func inline(server, path string) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
		NFS: &v1.NFSVolumeSource{Server: server, Path: path},
	}})
}

func persistent(server, path string, options ...string) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeSpec{
			MountOptions:           options,
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: server, Path: path}},
		},
	}, false)
}

// newPlugin returns a plugin on fake mounts, and those of the kernel's client and of the helper.
func newPlugin(t *testing.T, options Options) (plugin *Plugin, kernel, helper *fake.Mounter) {
	t.Helper()
	kernel, helper = fake.NewMounter(fake.MounterOptions{}), fake.NewMounter(fake.MounterOptions{})
	options.Mounter = kernel
	if options.Resolver == nil {
		options.Resolver = names{"server": {"192.0.2.1"}}
	}
	plugin = New(options)
	if options.Helper == nil {
		plugin.options.Helper = helper
	}
	require.NoError(t, volume.NewVolumePluginMgr(fake.NewHost("")).InitPlugins(t.Context(), plugin))
	return plugin, kernel, helper
}

func setUp(t *testing.T, plugin *Plugin, spec *volume.Spec) error {
	t.Helper()
	mounter, err := plugin.NewMounter(spec, pod)
	require.NoError(t, err)
	return mounter.SetUp(t.Context(), volume.MounterArgs{})
}

// requests returns what was asked to be mounted: type, source and options.
func requests(m *fake.Mounter) []string {
	var asked []string
	for _, call := range m.Calls() {
		if call.Method == fake.MethodMount {
			asked = append(asked, call.FSType+" "+call.Source+" "+strings.Join(call.Options, ","))
		}
	}
	return asked
}

func TestConformance(t *testing.T) {
	var exports atomic.Int64
	for name, newSpec := range map[string]func(server, path string) *volume.Spec{
		"of a pod": inline, "persistent": func(server, path string) *volume.Spec { return persistent(server, path) },
	} {
		t.Run(name, func(t *testing.T) {
			world := fake.NewMounter(fake.MounterOptions{})
			volumetest.Run(t, volumetest.Config{
				NewPlugin: func(testing.TB) volume.VolumePlugin {
					return New(Options{
						Mounter: volumetest.Yielding(world), Resolver: names{"server": {"192.0.2.1"}}, Recycler: worldRecycler{world},
					})
				},
				NewSpec: func(testing.TB) *volume.Spec { return newSpec("server", fmt.Sprintf("/export/%d", exports.Add(1))) },
				World:   world,
				Require: volume.CapPersistent | volume.CapRecycle | volume.CapMountOptions | volume.CapReconstruct,
				Shared:  true, Lifetime: volumetest.LifetimeOfStorage,
			})
		})
	}
}

// TestOnFakesNoPathOfTheMachineIsMeasured, although there is one by the name of the volume's.
func TestOnFakesNoPathOfTheMachineIsMeasured(t *testing.T) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
	require.NoError(t, err)
	world := fake.NewMounter(fake.MounterOptions{})
	for _, mounter := range []mount.Interface{world, volumetest.Yielding(world)} {
		plugin := New(Options{Mounter: mounter, Resolver: names{"server": {"192.0.2.1"}}})
		require.NoError(t, volume.NewVolumePluginMgr(host).InitPlugins(t.Context(), plugin))
		mounter, err := plugin.NewMounter(inline("server", "/export"), pod)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(mounter.GetPath(), 0o755))
		_, err = mounter.GetMetrics(t.Context())
		require.ErrorIs(t, err, volume.ErrUnsupported)
		require.NoError(t, mounter.SetUp(t.Context(), volume.MounterArgs{}))
		require.NoError(t, mounter.SetUp(t.Context(), volume.MounterArgs{}), "again")
	}
}

// worldRecycler is a pod in a world in memory, where the plugin itself cannot open a directory.
type worldRecycler struct{ world *fake.Mounter }

func (w worldRecycler) RecycleByPod(ctx context.Context, request volume.PodRecycleRequest, _ volume.RecycleEventRecorder) error {
	dir := "/recycler/" + request.PVName
	source := request.Volume.NFS.Server + ":" + request.Volume.NFS.Path
	if err := w.world.Mount(ctx, mount.Request{Source: source, Target: dir, FSType: "nfs", Options: []string{"addr=192.0.2.1"}}); err != nil {
		return err
	}
	files, err := w.world.ReadDir(dir)
	for _, file := range files {
		err = errors.Join(err, w.world.Remove(dir+"/"+file.Name()))
	}
	return errors.Join(err, w.world.Unmount(ctx, dir, mount.UnmountOptions{}))
}

func TestTheKernelMountsFromTheAddressesOfTheServer(t *testing.T) {
	// A host without that network has no address of its own there, and names none.
	clientOf := func(server string) string {
		if own := ownAddress(netip.MustParseAddr(server)); own != "" {
			return ",clientaddr=" + own
		}
		return ""
	}
	own, own6 := clientOf("192.0.2.1"), clientOf("::1")
	for _, c := range []struct {
		name string
		spec *volume.Spec
		want string
	}{
		{"by name", inline("server", "/export"), "nfs server:/export vers=4.2,addr=192.0.2.1,proto=tcp" + own},
		{"by address", inline("192.0.2.1", "/export"), "nfs 192.0.2.1:/export vers=4.2,addr=192.0.2.1,proto=tcp" + own},
		{"by an address in brackets", inline("[::1]", "/"), "nfs [::1]:/ vers=4.2,addr=::1,proto=tcp6" + own6},
		{"with options", persistent("::1", "/", "soft", "vers=4.1", "proto=rdma6"), "nfs [::1]:/ vers=4.1,addr=::1" + own6 + ",soft,proto=rdma6"},
		{"minor version apart", persistent("::1", "/", "nfsvers=4", "minorversion=1"), "nfs [::1]:/ vers=4.1,addr=::1,proto=tcp6" + own6},
		{"version as a word", persistent("::1", "/", "v4.0"), "nfs [::1]:/ vers=4.0,addr=::1,proto=tcp6" + own6},
		{"version 3 without a daemon", persistent("::1", "/", "vers=3", "nolock"), "nfs [::1]:/ vers=3,addr=::1,proto=tcp6,mountaddr=::1,mountproto=tcp6,mountvers=3,nolock"},
	} {
		t.Run(c.name, func(t *testing.T) {
			plugin, kernel, helper := newPlugin(t, Options{})
			require.NoError(t, setUp(t, plugin, c.spec))
			assert.Equal(t, []string{c.want}, requests(kernel))
			assert.Empty(t, requests(helper))
		})
	}
}

// Locks of version 3 need a daemon, without which two nodes lock the same file: mount.nfs starts it.
func TestVersion3WithLocksIsMountedByTheHelper(t *testing.T) {
	plugin, kernel, helper := newPlugin(t, Options{})
	require.NoError(t, setUp(t, plugin, persistent("server", "/export", "vers=3")))
	assert.Empty(t, requests(kernel))
	assert.Equal(t, []string{"nfs server:/export vers=3"}, requests(helper))
}

func TestASiteMayHaveAllMountedByTheHelper(t *testing.T) {
	helper := fake.NewMounter(fake.MounterOptions{})
	plugin, kernel, _ := newPlugin(t, Options{Helper: helper})
	require.NoError(t, setUp(t, plugin, persistent("anything", "/export", "soft")))
	assert.Empty(t, requests(kernel))
	assert.Equal(t, []string{"nfs anything:/export soft"}, requests(helper))
}

func TestVersionsAreTriedUntilTheServerSpeaksOne(t *testing.T) {
	plugin, kernel, helper := newPlugin(t, Options{})
	unknown := fmt.Errorf("mount: %w", syscall.EPROTONOSUPPORT)
	kernel.Inject(fake.MethodMount, fake.FailN(3, unknown))
	require.NoError(t, setUp(t, plugin, persistent("::1", "/", "soft")))
	var tried []string
	for _, request := range requests(kernel) {
		tried = append(tried, strings.Split(strings.Fields(request)[2], ",")[0])
	}
	assert.Equal(t, []string{"vers=4.2", "vers=4.1", "vers=4.0"}, tried)
	assert.Equal(t, []string{"nfs [::1]:/ soft,vers=3"}, requests(helper))
}

func TestAVersionThatIsAskedForIsTheOnlyOne(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{})
	kernel.Inject(fake.MethodMount, fake.FailN(-1, fmt.Errorf("mount: %w", syscall.EPROTONOSUPPORT)))
	err := setUp(t, plugin, persistent("::1", "/", "vers=4.1"))
	require.ErrorIs(t, err, syscall.EPROTONOSUPPORT)
	require.ErrorContains(t, err, `nfs volume "data", "[::1]:/": the server speaks none of the versions 4.1`)
	assert.Len(t, requests(kernel), 1)
}

func TestAddressesAreTriedUntilOneAnswers(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{Resolver: names{"server": {"192.0.2.1", "::ffff:192.0.2.2", "192.0.2.3"}}})
	kernel.Inject(fake.MethodMount, fake.FailN(1, fmt.Errorf("mount: %w", syscall.ECONNREFUSED)))
	require.NoError(t, setUp(t, plugin, inline("server", "/export")))
	require.Len(t, requests(kernel), 2)
	assert.Contains(t, requests(kernel)[1], "addr=192.0.2.2,")

	plugin, kernel, _ = newPlugin(t, Options{Resolver: names{"server": {"192.0.2.1", "192.0.2.2"}}})
	kernel.Inject(fake.MethodMount, fake.FailN(-1, fmt.Errorf("mount: %w", syscall.ECONNREFUSED)))
	err := setUp(t, plugin, inline("server", "/export"))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.Len(t, requests(kernel), 2, "who does not answer speaks no other version either")

	plugin, kernel, _ = newPlugin(t, Options{Resolver: names{"server": {"192.0.2.1", "192.0.2.2"}}})
	kernel.Inject(fake.MethodMount, fake.FailN(-1, fmt.Errorf("mount: %w", syscall.EACCES)))
	require.ErrorIs(t, setUp(t, plugin, inline("server", "/export")), syscall.EACCES)
	assert.Len(t, requests(kernel), 1, "an answer is an answer")
}

func TestAServerWithoutAnAddressIsTriedAgain(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{})
	err := setUp(t, plugin, inline("nowhere", "/export"))
	require.ErrorIs(t, err, volume.ErrTransient)
	require.ErrorContains(t, err, "nowhere")
	assert.Empty(t, requests(kernel))
}

func TestSourcesAreChecked(t *testing.T) {
	plugin, _, _ := newPlugin(t, Options{})
	for _, c := range []struct{ server, path, says string }{
		{"", "/x", "server is empty"}, {"a b", "/x", "neither a name nor an address"}, {"host:2049", "/x", "port="},
		{"server", "x", "begin with a slash"}, {"server", "", "begin with a slash"}, {"server", "/a/../b", ".."},
		{"server", "/a\nb", "control character"}, {"a/b", "/x", "neither"}, {"[::1", "/x", "neither"},
	} {
		_, err := plugin.NewMounter(inline(c.server, c.path), pod)
		require.ErrorIs(t, err, volume.ErrInvalid, "%q %q", c.server, c.path)
		require.ErrorContains(t, err, c.says)
	}
	_, err := plugin.NewMounter(persistent("server", "/x", "soft,hard"), pod)
	require.ErrorIs(t, err, volume.ErrInvalid)
	_, err = plugin.NewMounter(inline("server", "/x"), nil)
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func TestOptionsThatMountSomethingElseOrAreNoneAreRefused(t *testing.T) {
	plugin, kernel, helper := newPlugin(t, Options{})
	long := strings.Repeat("x", 5000)
	for _, option := range []string{
		"source=other:/x", "addr=192.0.2.9", "ADDR=192.0.2.9", "addr", "clientaddr=192.0.2.9", "mountaddr=192.0.2.9", "mounthost=other",
		"=x", "=", "a==b", "a=b=c", "a=", `\054addr=192.0.2.9`, `a=\054addr`, "a b", "a=b c", `a="b"`, "sp\u00e4t", "a=sp\u00e4t", "a;b",
		"a=" + long, long, long + "=x",
	} {
		_, err := plugin.NewMounter(persistent("server", "/x", "hard", option), pod)
		require.ErrorIs(t, err, volume.ErrInvalid, option)
		var refused *OptionError
		require.ErrorAs(t, err, &refused, option)
		assert.Equal(t, 1, refused.Index)
		assert.LessOrEqual(t, len(refused.Key), 64)
		assert.Less(t, len(err.Error()), 300)
		assert.NotContains(t, err.Error(), "192.0.2.9", "values are not told")
	}
	good := []string{"hard", "vers=4.1", "sec=krb5:krb5i", "rsize=1048576", "v4.2", "x-systemd.automount", "_netdev", "nconnect=4"}
	_, err := plugin.NewMounter(persistent("server", "/x", good...), pod)
	require.NoError(t, err)
	assert.Empty(t, append(requests(kernel), requests(helper)...))
}

func TestServersAreNamesOrAddresses(t *testing.T) {
	plugin, _, _ := newPlugin(t, Options{})
	for _, server := range []string{
		"-o", "-oproto=udp", "a;b", "$(id)", "a`b`", "a|b", "a..b", ".a", "-a.b", "a.-b", "a-.b", "a'b", "a@b", "sp\u00e4t", "a\\b",
		"fe80::1%;b", "fe80::1%a/b", strings.Repeat("x", 64), strings.Repeat("x.", 200) + "x", strings.Repeat("x", 5000),
	} {
		_, err := plugin.NewMounter(inline(server, "/x"), pod)
		require.ErrorIs(t, err, volume.ErrInvalid, server)
		assert.Less(t, len(err.Error()), 300, server)
	}
	for _, server := range []string{"a", "nfs_1.example.com", "nfs.example.com.", "192.0.2.1", "::1", "[2001:db8::1]", "fe80::1%eth0.1", "1a"} {
		_, err := plugin.NewMounter(inline(server, "/x"), pod)
		require.NoError(t, err, server)
	}
}

func TestErrorsStayShortWithLongNames(t *testing.T) {
	long := strings.Repeat("x", 5000)
	plugin, kernel, _ := newPlugin(t, Options{Resolver: names{"server": slices.Repeat([]string{"192.0.2.1"}, 500)}})
	_, err := plugin.NewMounter(inline("server", "/"+long), pod)
	require.ErrorIs(t, err, volume.ErrInvalid)
	assert.Less(t, len(err.Error()), 300)
	spec := persistent("server", "/"+strings.Repeat("x", 1000))
	spec.PersistentVolume.Name = long
	_, err = plugin.NewMounter(spec, pod)
	require.ErrorIs(t, err, volume.ErrInvalid)
	assert.Less(t, len(err.Error()), 300)

	spec.PersistentVolume.Name = "pv"
	kernel.Inject(fake.MethodMount, fake.FailN(100_000, syscall.ECONNREFUSED))
	err = setUp(t, plugin, spec)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.Less(t, len(err.Error()), 1000)
}

func TestNameIsServerAndPath(t *testing.T) {
	plugin, _, _ := newPlugin(t, Options{})
	name, err := plugin.GetVolumeName(inline("server", "/export"))
	require.NoError(t, err)
	assert.Equal(t, "server//export", name, "as in Kubernetes")
}

func TestReadOnlyIsThatOfTheReferenceForAClaim(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{})
	spec := persistent("server", "/export")
	mounter, err := plugin.NewMounter(spec, pod)
	require.NoError(t, err)
	assert.False(t, mounter.GetAttributes().ReadOnly)
	spec.ReadOnly = true
	require.NoError(t, setUp(t, plugin, spec))
	assert.True(t, strings.HasSuffix(requests(kernel)[0], ",ro"))
}

func TestAForeignMountIsLeftAlone(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{})
	mounter, err := plugin.NewMounter(inline("server", "/export"), pod)
	require.NoError(t, err)
	require.NoError(t, kernel.Mount(t.Context(), mount.Request{Source: "tmpfs", Target: mounter.GetPath(), FSType: "tmpfs"}))
	require.ErrorIs(t, mounter.SetUp(t.Context(), volume.MounterArgs{}), mount.ErrForeign)
	unmounter, err := plugin.NewUnmounter("data", pod.UID)
	require.NoError(t, err)
	require.ErrorIs(t, unmounter.TearDown(t.Context()), mount.ErrForeign)
	require.NoError(t, kernel.Mount(t.Context(), mount.Request{Source: "server:/export", Target: mounter.GetPath(), FSType: "nfs"}))
	require.ErrorIs(t, unmounter.TearDown(t.Context()), mount.ErrForeign, "it lies below ours")
	stack, err := mount.Stack(t.Context(), kernel, mounter.GetPath())
	require.NoError(t, err)
	assert.Len(t, stack, 2, "nothing was taken off")
}

func TestAnotherExportIsNotTakenForThisOne(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{Resolver: names{"server": {"192.0.2.1"}, "other": {"192.0.2.2"}}})
	require.NoError(t, setUp(t, plugin, inline("server", "/export")))
	require.ErrorIs(t, setUp(t, plugin, inline("other", "/export")), mount.ErrForeign)
	require.ErrorIs(t, setUp(t, plugin, inline("server", "/export/below")), mount.ErrForeign)
	assert.Len(t, requests(kernel), 1)
}

func TestAMountThatMayBeThereIsNotTriedElsewhere(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{Resolver: names{"server": {"192.0.2.1", "192.0.2.2"}}})
	kernel.Inject(fake.MethodMount, fake.FailN(-1, volume.Uncertain(syscall.ETIMEDOUT)))
	require.ErrorIs(t, setUp(t, plugin, inline("server", "/export")), volume.ErrUncertain)
	assert.Len(t, requests(kernel), 1)
}

func tearDown(t *testing.T, plugin *Plugin) error {
	t.Helper()
	unmounter, err := plugin.NewUnmounter("data", pod.UID)
	require.NoError(t, err)
	return unmounter.TearDown(t.Context())
}

func TestAVolumeOfWhichAFileIsOpenIsInUse(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{})
	require.NoError(t, setUp(t, plugin, inline("server", "/export")))
	release, err := kernel.Hold("/node/pods/pod-1/volumes/kubernetes.io~nfs/data")
	require.NoError(t, err)
	err = tearDown(t, plugin)
	require.ErrorIs(t, err, volume.ErrInUse)
	require.ErrorIs(t, err, syscall.EBUSY)
	release()
	require.NoError(t, tearDown(t, plugin))
}

// What a look asidePath has left, of a process that was killed meanwhile, goes with the volume.
func TestWhatWasLookedAtAsideGoesWithTheVolume(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{})
	at, err := plugin.podDirectory("data", pod.UID)
	require.NoError(t, err)
	require.NoError(t, kernel.Mount(t.Context(), mount.Request{Source: "server:/export", Target: at.asidePath(), FSType: fsType}))
	require.NoError(t, tearDown(t, plugin))
	table, err := kernel.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, table, 1, "the root alone")
}

// asked is a mounter that remembers how it was to unmount.
type asked struct {
	mount.Interface
	how []mount.UnmountOptions
}

func (a *asked) Unmount(ctx context.Context, target string, options mount.UnmountOptions) error {
	a.how = append(a.how, options)
	return a.Interface.Unmount(ctx, target, options)
}

func TestForceIsUsedWhereTheOptionsSaySoAlone(t *testing.T) {
	for _, options := range []Options{{}, {ForceAfter: time.Minute}, {ForceAfter: time.Minute, Lazy: true}} {
		plugin, kernel, _ := newPlugin(t, options)
		require.NoError(t, setUp(t, plugin, inline("server", "/export")))
		mounter := &asked{Interface: kernel}
		plugin.options.Mounter = mounter
		require.NoError(t, tearDown(t, plugin))
		require.NotEmpty(t, mounter.how)
		for _, how := range mounter.how {
			assert.Equal(t, mount.UnmountOptions{Force: options.ForceAfter, Lazy: options.Lazy}, how)
		}
	}
}

func TestAVolumeThatWasFoundTellsItsServer(t *testing.T) {
	plugin, _, _ := newPlugin(t, Options{})
	mounter, err := plugin.NewMounter(inline("::1", "/export/a"), pod)
	require.NoError(t, err)
	require.NoError(t, mounter.SetUp(t.Context(), volume.MounterArgs{}))
	found, err := plugin.ConstructVolumeSpec("data", mounter.GetPath())
	require.NoError(t, err)
	assert.Equal(t, &v1.NFSVolumeSource{Server: "::1", Path: "/export/a"}, found.Spec.Volume.NFS)
	require.NoError(t, tearDown(t, plugin))
	reading := inline("::1", "/export/a")
	reading.Volume.NFS.ReadOnly = true
	require.NoError(t, setUp(t, plugin, reading))
	found, err = plugin.ConstructVolumeSpec("data", mounter.GetPath())
	require.NoError(t, err)
	assert.True(t, found.Spec.Volume.NFS.ReadOnly)
	found, err = plugin.ConstructVolumeSpec("data", "/node/pods/pod-1/volumes/kubernetes.io~nfs/other")
	require.NoError(t, err)
	assert.Equal(t, UnknownServer, found.Spec.Volume.NFS.Server)
	assert.True(t, plugin.CanSupport(found.Spec))
}

// recycler is an orchestrator that runs pods which recycle.
type recycler struct {
	asked volume.PodRecycleRequest
	err   error
}

func (r *recycler) RecycleByPod(_ context.Context, request volume.PodRecycleRequest, _ volume.RecycleEventRecorder) error {
	r.asked = request
	return r.err
}

func TestRecyclingByAPod(t *testing.T) {
	r := &recycler{}
	plugin, kernel, _ := newPlugin(t, Options{Recycler: r})
	spec := persistent("server", "/export")
	spec.PersistentVolume.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("20Gi")}
	require.NoError(t, plugin.Recycle(t.Context(), "data", spec, func(string, string) {}))
	assert.Equal(t, volume.PodRecycleRequest{
		PVName: "data", Timeout: 10 * time.Minute,
		Volume: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "server", Path: "/export"}},
	}, r.asked)
	r.err = errors.New("the pod has failed")
	require.ErrorIs(t, plugin.Recycle(t.Context(), "data", spec, func(string, string) {}), r.err)
	require.ErrorIs(t, plugin.Recycle(t.Context(), "data", inline("server", "/export"), func(string, string) {}), volume.ErrInvalid)
	assert.Empty(t, requests(kernel))
}

// stale is the answer of a server that does not know a handle.
type stale struct{}

func (stale) GetMetrics(context.Context) (*volume.Metrics, error) { return nil, syscall.ESTALE }

func TestAStaleVolumeStaysWhereItCannotBeMountedAnew(t *testing.T) {
	plugin, kernel, _ := newPlugin(t, Options{})
	made, err := plugin.NewMounter(inline("server", "/export"), pod)
	require.NoError(t, err)
	m := made.(*mounter)
	require.NoError(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	before, err := kernel.List(t.Context())
	require.NoError(t, err)

	m.MetricsProvider = stale{}
	kernel.Inject(fake.MethodMount, fake.Fail(syscall.EACCES))
	err = m.SetUp(t.Context(), volume.MounterArgs{IsRemount: true})
	require.ErrorIs(t, err, syscall.EACCES)
	require.ErrorIs(t, err, volume.ErrUncertain)
	after, err := kernel.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, before, after)

	require.NoError(t, m.SetUp(t.Context(), volume.MounterArgs{IsRemount: true}))
	after, err = kernel.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, after, len(before))
	assert.NotEqual(t, before, after, "it is another mount")
}

// TestAPersistentVolumeMayBeReadOnlyBySource, whatever the pod's reference to the claim says.
func TestAPersistentVolumeMayBeReadOnlyBySource(t *testing.T) {
	pv := &v1.PersistentVolume{}
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: "a", Path: "/b", ReadOnly: true}
	e, err := exportOf(volume.NewSpecFromPersistentVolume(pv, false))
	require.NoError(t, err)
	assert.True(t, e.readOnly)
}

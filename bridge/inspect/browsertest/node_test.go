package browsertest

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// node is a node whose manager runs on fakes, and the address of its page.
type node struct {
	*volumemanager.Manager
	url     string
	refuses *fake.Plugin // its SetUp fails
	hangs   *fake.Plugin // its SetUp does not return before release is called
	release func()
}

// Status adds what a manager finds only where an earlier one has left it.
func (n *node) Status() volumemanager.NodeStatus {
	status := n.Manager.Status()
	status.Orphans = []volumemanager.Orphan{{Path: "/var/lib/agent/pods/gone/volumes", Err: errors.New(hostile)}}
	status.Damaged = []volumemanager.DamagedRecord{{Path: "/run/agent/torn.record", Err: errors.New("the checksum is another")}}
	status.LostData = []volumemanager.LostData{{Volume: "example.com/disk/old", At: time.Now(), Err: errors.New("input/output error")}}
	return status
}

// hostile is a text that a page without escaping would run as a script. It is a plain text while screenshots are made.
var hostile = func() string {
	if os.Getenv("SCREENSHOTS") != "" {
		return "(held by node-7)"
	}
	return `<img src=x onerror="document.title='run'"><script>document.title='run'</script>`
}()

// newNode returns a node that runs until the test ends.
func newNode(t *testing.T) *node {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node"})
	require.NoError(t, err)
	mounter := fake.NewMounter(fake.MounterOptions{})
	release := make(chan struct{})
	n := &node{
		refuses: fake.NewPlugin(fake.PluginOptions{Name: "example.com/refuses", Mounter: mounter}),
		hangs:   fake.NewPlugin(fake.PluginOptions{Name: "example.com/hangs", Mounter: mounter}),
		release: sync.OnceFunc(func() { close(release) }),
	}
	n.refuses.Inject(fake.MethodSetUp, fake.FailN(-1, errors.New("the disk is attached elsewhere "+hostile)))
	n.hangs.Inject(fake.MethodSetUp, fake.HangUninterruptible(release))
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: mounter}), n.refuses, n.hangs))
	history := inspect.NewHistory(inspect.HistoryOptions{})
	n.Manager, err = volumemanager.New(plugins, volumemanager.Options{
		Mounter: mounter, NoRecords: true, Observer: history, Store: store.NewMemory(store.MemoryOptions{}),
		PluginTimeouts: map[string]operationexecutor.Timeouts{"example.com/hangs": {Mount: 100 * time.Millisecond}},
	})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	server := httptest.NewServer(inspect.NewNode(n, inspect.NodeOptions{History: history}))
	n.url = server.URL + "/"
	t.Cleanup(func() {
		n.release()
		require.Eventually(t, func() bool { return len(n.Hung()) == 0 }, time.Minute, time.Millisecond, "Run tells of a call that it leaves behind")
		cancel()
		require.NoError(t, <-ended)
		server.Close() // It waits for the streams, which end with the manager.
	})
	n.PodsComplete()
	return n
}

// add adds a pod with one volume.
func (n *node) add(t *testing.T, name string, source v1.VolumeSource) *v1.Pod {
	t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
	pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: source}}
	pod.Spec.Containers = []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}}
	require.NoError(t, n.AddPod(t.Context(), pod))
	return pod
}

func inline(driver string) v1.VolumeSource {
	return v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver}}
}

func claim(name string) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

// addAll adds a pod for each state, and waits until each is in it.
func (n *node) addAll(t *testing.T) {
	t.Helper()
	well := n.add(t, "well", inline("fake.example.com"))
	n.add(t, "refused", inline("refuses.example.com"))
	n.add(t, "hung", inline("hangs.example.com"))
	n.add(t, "unbound", claim("missing"))
	require.NoError(t, n.WaitForAttachAndMount(t.Context(), well))
	require.Eventually(t, func() bool {
		refused, hung := n.PodStatus("uid-refused")[0], n.PodStatus("uid-hung")[0]
		_, hangs := hung.HungCall()
		return refused.Attempts > 0 && hangs
	}, patience, time.Millisecond)
}

func quote(s string) string { return strconv.Quote(s) }

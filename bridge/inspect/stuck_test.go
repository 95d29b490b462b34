package inspect

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// stuckNode is a node with a store, a controller of claims and a plugin that can do all.
type stuckNode struct {
	*volumemanager.Manager
	store   *store.Memory
	plugin  *fake.Plugin
	mounter *fake.Mounter
	events  *fake.Recorder
	release chan struct{} // closed when a call that hangs may return
}

// inStuckNode runs f on a node that runs, in a bubble.
func inStuckNode(t *testing.T, f func(*testing.T, *stuckNode)) {
	t.Helper()
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		host, err := volume.NewHost(volume.HostOptions{RootDir: root, NodeName: "node"})
		require.NoError(t, err)
		n := &stuckNode{mounter: fake.NewMounter(fake.MounterOptions{}), store: store.NewMemory(store.MemoryOptions{}), events: &fake.Recorder{}, release: make(chan struct{})}
		n.plugin = fake.NewPlugin(fake.PluginOptions{Mounter: n.mounter})
		plugins := volume.NewVolumePluginMgr(host)
		require.NoError(t, plugins.InitPlugins(t.Context(), n.plugin))
		n.Manager, err = volumemanager.New(plugins, volumemanager.Options{Mounter: n.mounter, NoRecords: true, Store: n.store, Recorder: n.events})
		require.NoError(t, err)
		claims := persistentvolume.New(plugins, n.store, persistentvolume.Options{NodeName: "node", Events: n.events, Mounts: n.Manager})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- n.Run(ctx) }()
		go func() { ended <- claims.Run(ctx) }()
		n.PodsComplete()
		synctest.Wait()
		f(t, n)
		close(n.release)
		synctest.Wait()
		cancel()
		require.NoError(t, errors.Join(<-ended, <-ended))
	})
}

func (n *stuckNode) create(t *testing.T, objects ...store.Object) {
	t.Helper()
	for _, o := range objects {
		_, err := n.store.Create(t.Context(), o)
		require.NoError(t, err)
	}
}

// claimed adds a pod that uses a claim.
func (n *stuckNode) claimed(t *testing.T) *v1.Pod {
	t.Helper()
	pod := podWith("shop", 1, 1)
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	n.create(t, pod)
	require.NoError(t, n.AddPod(t.Context(), pod))
	return pod
}

// aClaim returns a claim of a class; the empty class is none.
func aClaim(class string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

func aClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName}
}

// provisioned adds a pod whose claim the plugin makes a volume for.
func (n *stuckNode) provisioned(t *testing.T) *v1.Pod {
	t.Helper()
	n.create(t, aClass(), aClaim("fast"))
	return n.claimed(t)
}

// TestEveryViewOfAStuckPodHasTheSameCause makes states of docs/troubleshooting.md on purpose. What other programs do to mounts is made
// on real ones, in the tests of volumemanager.
func TestEveryViewOfAStuckPodHasTheSameCause(t *testing.T) {
	type stuck struct {
		// make brings a pod into the state.
		make func(*testing.T, *stuckNode) *v1.Pod
		// cause is what each view says; event the reason of the event that says it, too, empty where there is nothing to tell it of.
		cause, event string
		// unmounts says that the pod is to go, and does not.
		unmounts bool
	}
	fails := func(method fake.Method, err error) func(*testing.T, *stuckNode) *v1.Pod {
		return func(t *testing.T, n *stuckNode) *v1.Pod {
			t.Helper()
			n.plugin.Inject(method, fake.FailN(-1, err))
			return n.provisioned(t)
		}
	}
	stays := func(err error) func(*testing.T, *stuckNode) *v1.Pod {
		return func(t *testing.T, n *stuckNode) *v1.Pod {
			t.Helper()
			pod := n.provisioned(t)
			require.NoError(t, n.WaitForAttachAndMount(t.Context(), pod))
			n.plugin.Inject(fake.MethodTearDown, fake.FailN(-1, err))
			require.NoError(t, n.RemovePod(pod.UID))
			return pod
		}
	}
	for name, s := range map[string]stuck{
		"the claim is missing": {
			make: func(t *testing.T, n *stuckNode) *v1.Pod { t.Helper(); return n.claimed(t) },
			// No event can be recorded on a missing object. The error of the pod's wait says it.
			cause: `create claim "shop/data"`,
		},
		"the claim has no class": {
			make: func(t *testing.T, n *stuckNode) *v1.Pod {
				t.Helper()
				n.create(t, aClaim(""))
				return n.claimed(t)
			},
			cause: "no persistent volumes available", event: "FailedBinding",
		},
		"the class is missing": {
			make: func(t *testing.T, n *stuckNode) *v1.Pod {
				t.Helper()
				n.create(t, aClaim("fast"))
				return n.claimed(t)
			},
			cause: `storage class "fast" does not exist`, event: "ProvisioningFailed",
		},
		"the plugin makes no volume": {make: fails(fake.MethodProvision, errors.New("the pool is full")), cause: "the pool is full", event: "ProvisioningFailed"},
		"the attach is refused":      {make: fails(fake.MethodAttach, errors.New("the disk is elsewhere")), cause: "the disk is elsewhere", event: "FailedAttachVolume"},
		"the disk is full":           {make: fails(fake.MethodSetUp, fmt.Errorf("mkdir /data: %w", syscall.ENOSPC)), cause: "no space left on device", event: "FailedMount"},
		"it has another filesystem":  {make: fails(fake.MethodMountDevice, errors.New("the device has xfs, the volume asks for ext4")), cause: "the device has xfs", event: "FailedMount"},
		"its server hangs": {
			make: func(t *testing.T, n *stuckNode) *v1.Pod {
				t.Helper()
				n.plugin.Inject(fake.MethodSetUp, fake.HangUninterruptible(n.release))
				return n.provisioned(t)
			},
			cause: "SetUp has not returned", event: "FailedMount",
		},
		"a process uses it": {
			make:  stays(fmt.Errorf("umount /data: %w", syscall.EBUSY)),
			cause: "device or resource busy", event: "FailedUnmount", unmounts: true,
		},
		"another mount is in its place": {
			make:  stays(fmt.Errorf("tmpfs at /data: %w", mount.ErrForeign)),
			cause: "mounted by another program", event: "FailedUnmount", unmounts: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inStuckNode(t, func(t *testing.T, n *stuckNode) {
				pod := s.make(t, n)
				time.Sleep(5 * time.Minute) // The bubble's: all that is tried has been tried, and what hangs has outlived its time.
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				wait := n.WaitForAttachAndMount
				if s.unmounts {
					wait = n.WaitForUnmount
				}
				require.ErrorContains(t, wait(ctx, pod), s.cause)
				target := "?pod=" + string(pod.UID)
				v := read(t, n, "/v1/node"+target).Volumes[0]
				assert.Contains(t, v.Error+conditionsOf(v), s.cause)
				assert.Contains(t, html.UnescapeString(do(t, n, http.MethodGet, "/"+target).Body.String()), s.cause)
				assert.Contains(t, do(t, n, http.MethodGet, "/v1/node.txt"+target).Body.String(), s.cause)
				if s.event != "" {
					assert.True(t, tellsOf(n.events.Events(), s.event, s.cause), "%v", n.events.Events())
				}
			})
		})
	}
}

// A hung call has its stack where the query asks for it, and nowhere else.
func TestAHungCallHasItsStack(t *testing.T) {
	inStuckNode(t, func(t *testing.T, n *stuckNode) {
		n.plugin.Inject(fake.MethodSetUp, fake.HangUninterruptible(n.release))
		n.provisioned(t)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		assert.Empty(t, read(t, n, "/v1/node").HungCalls[0].Stack)
		assert.Contains(t, read(t, n, "/v1/node?stacks=1").HungCalls[0].Stack, "SetUp")
		assert.Contains(t, do(t, n, http.MethodGet, "/?stacks=1").Body.String(), "<pre>goroutine ")
		assert.NotContains(t, do(t, n, http.MethodGet, "/").Body.String(), "<pre>")
		assert.Contains(t, do(t, n, http.MethodGet, "/v1/node.txt?stacks=1").Body.String(), "\n    goroutine ")
	})
}

// conditionsOf returns what the conditions of a volume say.
func conditionsOf(v Volume) string {
	var all strings.Builder
	for _, c := range v.Conditions {
		all.WriteString(c.Message + c.Error)
	}
	return all.String()
}

// tellsOf reports whether an event of a reason has the cause.
func tellsOf(events []fake.Event, reason, cause string) bool {
	for _, e := range events {
		if e.Reason == reason && strings.Contains(e.Message, cause) {
			return true
		}
	}
	return false
}

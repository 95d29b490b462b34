package volumemanager

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// TestChurnEndsWithWhatIsWanted drives a node at random: pods come, change and go, plugins fail in every class, hang and
// panic, the agent is restarted. When the faults stop, what is wanted is there and nothing else. The seed of a failure is
// in its name.
func TestChurnEndsWithWhatIsWanted(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T) {
				newChurn(t, seed).run()
			})
		})
	}
}

type churn struct {
	*world
	rand   *rand.Rand
	wanted map[string]*v1.Pod
	// more is what else may happen; nil: nothing.
	more func()
}

func newChurn(t *testing.T, seed uint64, with ...func(*world)) *churn {
	t.Helper()
	c := &churn{world: newWorld(t, withRecords(t)), rand: rand.New(rand.NewPCG(seed, 1)), wanted: make(map[string]*v1.Pod)}
	for _, name := range []string{"x", "y", "z"} {
		c.claim(name)
	}
	for _, f := range with {
		f(c.world)
	}
	c.start().PodsComplete()
	return c
}

func (c *churn) run() {
	c.steps()
	c.check()
}

func (c *churn) steps() {
	for range 60 {
		switch c.rand.IntN(10) {
		case 0, 1, 2, 3:
			c.addOne()
		case 4, 5:
			c.removeOne()
		case 6, 7:
			c.injectOne()
		case 8:
			c.restart()
		default:
			pass(time.Duration(c.rand.IntN(3000)) * time.Millisecond)
			if c.more != nil {
				c.more()
			}
		}
		if c.rand.IntN(3) > 0 {
			synctest.Wait()
		}
	}
}

func (c *churn) addOne() {
	name := fmt.Sprintf("pod-%d", c.rand.IntN(6))
	volumes := []string{"x", "y:ro", "z", "-own", "-too"}
	c.rand.Shuffle(len(volumes), func(i, j int) { volumes[i], volumes[j] = volumes[j], volumes[i] })
	pod := podOf(name, volumes[:c.rand.IntN(len(volumes)+1)]...)
	require.NoError(c.t, c.manager.AddPod(c.t.Context(), pod))
	c.wanted[name] = pod
}

func (c *churn) removeOne() {
	name := fmt.Sprintf("pod-%d", c.rand.IntN(6))
	require.NoError(c.t, c.manager.RemovePod(podOf(name).UID))
	delete(c.wanted, name)
}

func (c *churn) injectOne() {
	methods := []fake.Method{
		fake.MethodAttach, fake.MethodDetach, fake.MethodMountDevice, fake.MethodUnmountDevice, fake.MethodSetUp,
		fake.MethodTearDown, fake.MethodWaitForAttach, fake.MethodNewMounter, fake.MethodNewUnmounter,
	}
	broken := errors.New("broken")
	faults := []fake.Fault{
		fake.Fail(broken), fake.Fail(volume.Transient(broken)), fake.Fail(volume.Uncertain(broken)),
		fake.FailAfter(volume.Uncertain(broken)), fake.PanicWith("oops"), fake.HangUntil(make(chan struct{})),
	}
	c.plugin.Inject(methods[c.rand.IntN(len(methods))], faults[c.rand.IntN(len(faults))])
}

// restart stops the agent in the middle of what it does, and starts another one.
func (c *churn) restart() {
	require.NoError(c.t, c.stop())
	c.start()
	for _, pod := range c.wanted {
		require.NoError(c.t, c.manager.AddPod(c.t.Context(), pod))
	}
	c.manager.PodsComplete()
}

func (c *churn) check() {
	pass(20 * time.Minute) // faults that are left are used up, hung calls run into their deadlines
	staged, want := make(map[string]bool), 0
	for _, pod := range c.wanted {
		require.NoError(c.t, c.manager.WaitForAttachAndMount(c.t.Context(), pod))
		volumes := c.manager.GetMountedVolumesForPod(volume.GetUniquePodName(pod))
		assert.Len(c.t, volumes, len(pod.Spec.Volumes))
		for outer, v := range volumes {
			want++
			if strings.HasPrefix(v.InnerVolumeSpecName, "pv-") {
				staged[outer] = true
			}
			assert.Truef(c.t, slices.Contains(c.mounts(), strings.TrimPrefix(v.Path, testRoot)), "%s of %s", outer, pod.Name)
		}
	}
	pass(time.Hour)
	assert.Len(c.t, c.mounts(), want+len(staged))
	for name, pod := range c.wanted {
		delete(c.wanted, name)
		c.remove(pod)
	}
	c.isClean()
}

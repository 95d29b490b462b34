package volumemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/volume"
)

// movingPlugin moves the root during one of its calls.
type movingPlugin struct {
	*emptydir.Plugin
	before, after atomic.Pointer[func() error] // of the next SetUp or TearDown
}

// moved does what was planned for a call, once.
func moved(planned *atomic.Pointer[func() error]) error {
	if do := planned.Swap(nil); do != nil {
		return (*do)()
	}
	return nil
}

// during makes the call between both moves.
func (p *movingPlugin) during(call func() error) error {
	return errors.Join(moved(&p.before), call(), moved(&p.after))
}

func (p *movingPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	m, err := p.Plugin.NewMounter(spec, pod)
	return movingMounter{m, p}, err
}

func (p *movingPlugin) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	u, err := p.Plugin.NewUnmounter(name, uid)
	return movingUnmounter{u, p}, err
}

type movingMounter struct {
	volume.Mounter
	plugin *movingPlugin
}

func (m movingMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.plugin.during(func() error { return m.Mounter.SetUp(ctx, args) })
}

type movingUnmounter struct {
	volume.Unmounter
	plugin *movingPlugin
}

func (u movingUnmounter) TearDown(ctx context.Context) error {
	return u.plugin.during(func() error { return u.Unmounter.TearDown(ctx) })
}

// TestARootThatIsMovedDuringACall: the call finds nothing at its path, or makes a volume in another directory. Neither counts as done.
func TestARootThatIsMovedDuringACall(t *testing.T) {
	pods := map[string]func(string) *v1.Pod{"memory": emptyDirPod, "directory": diskPod}
	for kind, newPod := range pods {
		for name, c := range map[string]struct {
			setUp, before bool // the root is moved before the plugin's work, or after it
			err           error
		}{
			"teardown":                  {before: true},
			"teardown, which had ended": {},
			"set-up":                    {setUp: true, before: true},
			"set-up, at its end":        {setUp: true},
			"set-up, which fails then":  {setUp: true, err: errors.New("broken")},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				n := newWatchedNode(t)
				n.options.Backoff.Initial, n.options.Backoff.Max = time.Millisecond, 20*time.Millisecond
				plugin := &movingPlugin{Plugin: emptydir.New(emptydir.Options{Mounter: n.mounter})}
				n.plugins = volume.NewVolumePluginMgr(n.plugins.Host())
				require.NoError(t, n.plugins.InitPlugins(t.Context(), plugin))
				n.run()
				root, pod := filepath.Join(n.root, "lib"), newPod("web")
				do := func() error { return errors.Join(os.Rename(root, root+".old"), c.err) }
				planned := &plugin.after
				if c.before {
					planned = &plugin.before
				}
				if c.setUp {
					planned.Store(&do)
					require.NoError(t, n.m.AddPod(t.Context(), pod))
				} else {
					path := n.add(pod)
					require.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
					planned.Store(&do)
					require.NoError(t, n.m.RemovePod(pod.UID))
				}
				n.until(pod, func(s VolumeStatus) bool { // A mount that is there is looked for first, and found elsewhere.
					return errors.Is(s.Err, ErrRootReplaced) || slices.Contains(reasonsOf(s), ReasonMoved)
				})

				moveBack(t, root)
				if c.setUp {
					require.NoError(t, n.m.WaitForAttachAndMount(t.Context(), pod))
					require.NoError(t, n.m.RemovePod(pod.UID))
				}
				require.NoError(t, n.m.WaitForUnmount(t.Context(), pod))
				require.NoError(t, n.m.WaitForNodeEmpty(t.Context()))
				assert.Empty(t, mountsNamed(t, "volumekit-"))
				left, err := os.ReadDir(filepath.Join(root, "pods"))
				require.NoError(t, err)
				assert.Empty(t, left)
			})
		}
	}
}

// moveBack puts the root back, as an operator does: first what a call has made in its place is taken away.
func moveBack(t *testing.T, root string) {
	t.Helper()
	if _, err := os.Lstat(root); err == nil {
		require.NoError(t, os.Rename(root, root+".stray"))
		for _, path := range treeOf(t, root+".stray") {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	}
	require.NoError(t, os.Rename(root+".old", root))
}

package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// eventLog keeps events.
type eventLog struct {
	mu     sync.Mutex
	events []string
}

func (l *eventLog) Eventf(_ runtime.Object, eventtype, reason, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, eventtype+" "+reason+" "+fmt.Sprintf(format, args...))
}

func (l *eventLog) count(reason string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if slices.Contains(splitWords(e), reason) {
			n++
		}
	}
	return n
}

func splitWords(s string) (words []string) {
	for len(s) > 0 {
		var word string
		if _, err := fmt.Sscan(s, &word); err != nil {
			return words
		}
		words = append(words, word)
		s = s[min(len(s), len(word)+1):]
	}
	return words
}

// watchedNode is a real node whose manager watches mounts.
type watchedNode struct {
	realNode
	t       *testing.T
	mounter *mount.Mounter
	news    *newsMounter
	events  *eventLog
	m       *Manager
}

// newWatchedNode returns a node on which the resync is off. Change its options before start.
func newWatchedNode(t *testing.T) *watchedNode {
	t.Helper()
	n := &watchedNode{realNode: newRealNode(t), t: t, mounter: mount.New(mount.Options{}), events: &eventLog{}}
	n.news = newNewsMounter(n.mounter)
	n.options.Mounter, n.options.Recorder = n.news, n.events
	return n
}

// run runs the manager until the test ends, when everything that is still mounted by it is taken off.
func (n *watchedNode) run() {
	n.t.Helper()
	var stop func()
	n.m, stop = n.realNode.start(n.t)
	n.m.PodsComplete()
	n.t.Cleanup(stop)
}

// add adds a pod, waits until it is ready, and returns where its volume is.
func (n *watchedNode) add(pod *v1.Pod) (path string) {
	n.t.Helper()
	require.NoError(n.t, n.m.AddPod(n.t.Context(), pod))
	require.NoError(n.t, n.m.WaitForAttachAndMount(n.t.Context(), pod))
	for _, info := range n.m.GetMountedVolumesForPod(volume.GetUniquePodName(pod)) {
		path = info.Path
	}
	return path
}

func (n *watchedNode) remove(pod *v1.Pod) {
	n.t.Helper()
	require.NoError(n.t, n.m.RemovePod(pod.UID))
	require.NoError(n.t, n.m.WaitForUnmount(n.t.Context(), pod))
}

// until returns the status of a pod's one volume when it is as wanted.
func (n *watchedNode) until(pod *v1.Pod, wanted func(VolumeStatus) bool) VolumeStatus {
	n.t.Helper()
	changed, cancel := n.m.changes.Subscribe(changes.AnyPod)
	defer cancel()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	for {
		status := n.m.PodStatus(pod.UID)
		if len(status) == 1 && wanted(status[0]) {
			return status[0]
		}
		select {
		case <-changed:
		case <-patience.C:
			require.Fail(n.t, "it never came to that", "%+v", status)
		}
	}
}

func has(reason string) func(VolumeStatus) bool {
	return func(s VolumeStatus) bool { return slices.Contains(reasonsOf(s), reason) }
}

func isWell(s VolumeStatus) bool { return len(s.Conditions) == 0 && s.Phase == PhaseMounted }

func (n *watchedNode) idAt(path string) uint64 {
	n.t.Helper()
	found, err := n.mounter.Lookup(n.t.Context(), path)
	require.NoError(n.t, err)
	return found.UniqueID
}

// settle returns when the manager has heard of all mounts so far, so that a remount is told of alone. The kernel tells of an
// unmount twice, and what the manager does may show that it has heard of it once.
func (n *watchedNode) settle(pod *v1.Pod, path string) {
	n.t.Helper()
	require.NoError(n.t, unix.Mount("foreign", path, "tmpfs", 0, "size=64k"))
	n.until(pod, has(ReasonMountedOver))
	unmountForeign(n.t, path)
	n.until(pod, isWell)

	elsewhere, lost := n.t.TempDir(), n.news.lost()
	require.NoError(n.t, unix.Mount("foreign", elsewhere, "tmpfs", 0, "size=64k"))
	last := n.idAt(elsewhere)
	unmountForeign(n.t, elsewhere)
	n.news.await(func(news *newsMounter) bool { return news.gone[last] || news.whole > lost }) // They come in their order.
}

// newsMounter keeps what the manager has heard of mounts.
type newsMounter struct {
	*mount.Mounter
	mu    sync.Mutex
	more  *sync.Cond
	gone  map[uint64]bool
	whole int // how often it may be any mount
}

func newNewsMounter(mounter *mount.Mounter) *newsMounter {
	m := &newsMounter{Mounter: mounter, gone: map[uint64]bool{}}
	m.more = sync.NewCond(&m.mu)
	return m
}

func (m *newsMounter) Watch(ctx context.Context, changed func(mount.TableChange)) error {
	return m.Mounter.Watch(ctx, func(change mount.TableChange) {
		changed(change)
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, id := range change.Detached {
			m.gone[id] = true
		}
		if change.Whole {
			m.whole++
		}
		m.more.Broadcast()
	})
}

func (m *newsMounter) lost() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.whole
}

func (m *newsMounter) await(heard func(*newsMounter) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !heard(m) {
		m.more.Wait()
	}
}

func TestForeignUnmountIsNoticedAndTheVolumeIsSetUpAgain(t *testing.T) {
	n := newWatchedNode(t)
	n.run()
	pod := emptyDirPod("web")
	path := n.add(pod)
	first := n.idAt(path)
	unmountForeign(t, path)
	n.until(pod, func(s VolumeStatus) bool {
		found, err := n.mounter.Lookup(t.Context(), path)
		return isWell(s) && err == nil && found.UniqueID != first
	})
	assert.Equal(t, 1, n.events.count(health.EventAbnormal))
	assert.Equal(t, 1, n.events.count(health.EventNormal))
	n.remove(pod)
	assert.NoDirExists(t, path)
}

func TestForeignMountOnTopIsReportedAndLeftAlone(t *testing.T) {
	n := newWatchedNode(t)
	n.options.Backoff.Initial = time.Millisecond
	n.run()
	pod := emptyDirPod("web")
	path := n.add(pod)
	ours := n.idAt(path)
	require.NoError(t, unix.Mount("foreign", path, "tmpfs", 0, "size=64k"))
	require.NoError(t, os.WriteFile(filepath.Join(path, "precious"), nil, 0o600))
	s := n.until(pod, has(ReasonMountedOver))
	require.ErrorIs(t, s.Conditions[0].Err, mount.ErrForeign)
	assert.Equal(t, volume.HealthAbnormal, s.Conditions[0].Status)
	assert.False(t, s.Conditions[0].Since.IsZero())

	require.NoError(t, n.m.RemovePod(pod.UID))
	s = n.until(pod, func(s VolumeStatus) bool { return !s.Wanted && s.Err != nil })
	require.ErrorIs(t, s.Err, mount.ErrForeign)
	assert.FileExists(t, filepath.Join(path, "precious"))

	unmountForeign(t, path)
	require.NoError(t, n.m.WaitForUnmount(t.Context(), pod), "when it has gone, all goes on by itself")
	_, err := n.mounter.LookupID(t.Context(), ours)
	require.ErrorIs(t, err, mount.ErrNotMounted)
	assert.NoDirExists(t, path)
}

func TestMountAboveThePodsHidesThemAndNothingIsSetUpInIt(t *testing.T) {
	n := newWatchedNode(t)
	n.run()
	pod := emptyDirPod("web")
	path := n.add(pod)
	ours, pods := n.idAt(path), n.plugins.Host().GetPodsDir()
	require.NoError(t, unix.Mount("foreign", pods, "tmpfs", 0, "size=64k"))
	s := n.until(pod, has(ReasonMountedOver))
	require.ErrorIs(t, s.Conditions[0].Err, mount.ErrForeign)
	assert.Equal(t, PhaseMounted, s.Phase, "it is still there")
	assert.NoDirExists(t, path)
	unmountForeign(t, pods)
	n.until(pod, isWell)
	assert.Equal(t, ours, n.idAt(path))
	n.remove(pod)
}

func TestChangedFlagsAreReported(t *testing.T) {
	n := newWatchedNode(t)
	n.run()
	pod := emptyDirPod("web")
	path := n.add(pod)
	n.settle(pod, path)
	remount := func(flags uintptr) {
		require.NoError(t, unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|flags, ""))
	}
	remount(unix.MS_RDONLY)
	s := n.until(pod, has(ReasonFlagsChanged))
	assert.Equal(t, PhaseMounted, s.Phase, "it is not set up again: the mount may be read-only for a reason")
	remount(0)
	n.until(pod, isWell)
	n.remove(pod)
}

func TestFilesystemThatHasBecomeReadOnlyIsReported(t *testing.T) {
	n := newWatchedNode(t)
	n.run()
	pod := emptyDirPod("web")
	path := n.add(pod)
	n.settle(pod, path)
	require.NoError(t, unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, ""))
	n.until(pod, has(ReasonFilesystemReadOnly))
	n.remove(pod)
}

// TestIdleNodeReadsNothing counts the looks at real mounts, those of others too. The mount table is read at the start,
// and once for each change that no event explains: the first one, and one of which the kernel tells by its event half a second
// later than by the table.
func TestIdleNodeReadsNothing(t *testing.T) {
	n := newWatchedNode(t)
	counting := &countingMounter{newsMounter: n.news}
	n.options.Mounter = counting
	n.run()
	pods := make([]*v1.Pod, 20)
	last := ""
	for i := range pods {
		pods[i] = emptyDirPod(fmt.Sprint("web-", i))
		last = n.add(pods[i])
	}
	n.settle(pods[len(pods)-1], last) // The news of a mount of ours may be a look at it, and may come late.
	_, looks := counting.counts()
	foreign := t.TempDir()
	require.NoError(t, unix.Mount("foreign", foreign, "tmpfs", 0, "size=64k"))
	unmountForeign(t, foreign)
	n.remove(pods[0]) // after which the news of the foreign mount has come: it is in the order of the events
	unmountForeign(t, n.add(pods[0]))
	n.until(pods[0], isWell)
	lists, looksAfter := counting.counts()
	assert.LessOrEqual(t, lists, 2+counting.changesOfAll(), "the mount table was read without a cause: it is read for the records, and for what is on none")
	assert.Less(t, looksAfter-looks, 20, "mounts were looked at that nothing has happened to")
	for _, pod := range pods {
		n.remove(pod)
	}
}

// countingMounter counts looks.
type countingMounter struct {
	*newsMounter
	mu           sync.Mutex
	lists, looks int
	unexplained  int // changes that may be about any mount
}

func (c *countingMounter) List(ctx context.Context) ([]mount.MountPoint, error) {
	c.mu.Lock()
	c.lists++
	c.mu.Unlock()
	return c.Mounter.List(ctx)
}

func (c *countingMounter) Lookup(ctx context.Context, path string) (mount.MountPoint, error) {
	c.mu.Lock()
	c.looks++
	c.mu.Unlock()
	return c.Mounter.Lookup(ctx, path)
}

func (c *countingMounter) Watch(ctx context.Context, changed func(mount.TableChange)) error {
	return c.newsMounter.Watch(ctx, func(change mount.TableChange) {
		c.mu.Lock()
		if change.Whole || len(change.Attached)+len(change.Detached) == 0 {
			c.unexplained++
		}
		c.mu.Unlock()
		changed(change)
	})
}

func (c *countingMounter) counts() (lists, looks int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists, c.looks
}

// TestLostEventsAreMadeGoodByOneLookAtAll lets the watcher say that it has lost events.
func TestLostEventsAreMadeGoodByOneLookAtAll(t *testing.T) {
	n := newWatchedNode(t)
	deaf := &deafMounter{Mounter: n.mounter, lost: make(chan struct{})}
	n.options.Mounter = deaf
	n.run()
	pod := emptyDirPod("web")
	path := n.add(pod)
	unmountForeign(t, path)
	close(deaf.lost)
	n.until(pod, func(s VolumeStatus) bool {
		_, err := n.mounter.Lookup(t.Context(), path)
		return isWell(s) && err == nil
	})
	n.remove(pod)
}

// deafMounter tells of no change but that some were lost.
type deafMounter struct {
	*mount.Mounter
	lost chan struct{}
}

func (d *deafMounter) Watch(ctx context.Context, changed func(mount.TableChange)) error {
	select {
	case <-d.lost:
		changed(mount.TableChange{Whole: true})
	case <-ctx.Done():
	}
	<-ctx.Done()
	return errors.Join(ctx.Err())
}

func (c *countingMounter) changesOfAll() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unexplained
}

// unmountForeign unmounts what is uppermost at path. It is busy for the moment of each look that the manager takes at it.
func unmountForeign(t *testing.T, path string) {
	t.Helper()
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	for deadline := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); {
		goruntime.Gosched()
		err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	}
	require.NoError(t, err)
}

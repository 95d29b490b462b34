package attachdetach_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/store"
)

// This file is the world of the simulation of a cluster as it really is, whatever the processes record: what is mounted where, whose
// data is in which volume, and what was seen to go wrong.

// cluster is the world: its store, its storage, and the mounts of its nodes.
type cluster struct {
	// memory is the store, and world the way to it of all that is no controller.
	memory  *store.Memory
	world   world
	backend *fake.Backend
	bugs    bugs
	started time.Time
	// turns are those of all goroutines of the controllers; steps is what happened, with each turn.
	turns *simulation.Scheduler
	steps *simulation.Trace

	mu     sync.Mutex
	random *rand.Rand
	calm   bool
	// uids is how many objects were made.
	uids int
	// mounted is what is mounted, by handle and node.
	mounted map[string]map[string]bool
	// owners are the UIDs of the claims whose data is in a volume; filesystems how large the filesystem in it is.
	owners      map[string]types.UID
	filesystems map[string]int64
	// wellSince is since when a node is ready; a node that is not ready has none. wantedAt is when a volume was last wanted on a node.
	wellSince map[string]time.Time
	wantedAt  map[string]time.Time
	// capacities are the largest that claims were said to have.
	capacities map[types.UID]int64
	// grownFor is the claim for which a volume was expanded last: a call that takes its time may outlive it.
	grownFor map[string]types.UID
	// found is how large the storage was when a claim got it.
	found map[types.UID]int64
	// zones are where volumes are, content what populators have written into them, and filling those that they have mounted. changes
	// are the calls that change a volume now, by process and handle. placed is where a pod was first seen.
	zones, content map[string]string
	filling        map[string]bool
	changes        map[string][]string
	// mended are the attributes of the class "broken", nil before the faults have stopped.
	mended map[string]string
	placed map[types.UID]string
	// oneScheduler says that one scheduler works at a time.
	oneScheduler bool
	// judge is a scheduler that sees everything at once, nil before the faults have stopped.
	judge *scheduling.Scheduler

	violations []string
	trace      []string
	counts     map[string]int
}

func newCluster(seed uint64, planted bugs) *cluster {
	// A short history has watches that fall behind list everything again.
	memory, steps := store.NewMemory(store.MemoryOptions{History: 20}), &simulation.Trace{Keep: true}
	c := &cluster{
		oneScheduler: seed%2 == 0,
		memory:       memory, backend: fake.NewBackend(), bugs: planted, started: time.Now(),
		turns: simulation.NewScheduler(rand.New(rand.NewPCG(seed, 2)), steps), steps: steps,
		random: rand.New(rand.NewPCG(seed, 1)), mounted: map[string]map[string]bool{},
		owners: map[string]types.UID{}, filesystems: map[string]int64{}, wellSince: map[string]time.Time{},
		wantedAt: map[string]time.Time{}, capacities: map[types.UID]int64{}, found: map[types.UID]int64{}, grownFor: map[string]types.UID{}, counts: map[string]int{},
		zones: map[string]string{}, content: map[string]string{}, filling: map[string]bool{}, changes: map[string][]string{}, placed: map[types.UID]string{},
	}
	c.world = world{memory, c}
	return c
}

// withUID returns an object that is to be made, with a UID: the store would make one up.
func (c *cluster) withUID(obj runtime.Object) runtime.Object {
	made, is := obj.DeepCopyObject().(store.Object)
	if !is || made.GetUID() != "" {
		return obj
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uids++
	made.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", c.uids)))
	return made
}

// luck returns a number below n. When the faults have stopped it is one that means none.
func (c *cluster) luck(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calm {
		return n / 2
	}
	return c.random.IntN(n)
}

// dice returns a number below n, also when the faults have stopped.
func (c *cluster) dice(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.IntN(n)
}

func (c *cluster) isCalm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calm
}

// violate notes what must never be.
func (c *cluster) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.note("VIOLATION: %s", text)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, text)
}

// isWhole reports whether nothing was violated.
func (c *cluster) isWhole() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.violations) == 0
}

// note notes what happens, for people.
func (c *cluster) note(format string, args ...any) {
	line := fmt.Sprintf("%v: ", time.Since(c.started).Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	c.steps.Note(line)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trace = append(c.trace, line)
}

// count counts what has happened, so that a test can ask whether it happened at all.
func (c *cluster) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

// mountsOf returns the nodes that have a volume mounted.
func (c *cluster) mountsOf(handle string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var nodes []string
	for node := range c.mounted[handle] {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	return nodes
}

func (c *cluster) isMounted(handle, node string) bool {
	return slices.Contains(c.mountsOf(handle), node)
}

// mount mounts a volume on a node for a claim. It is there that two nodes would destroy each other's data, and that one would see
// what is another's.
func (c *cluster) mount(handle, node string, claim types.UID) {
	c.note("%s mounts %s", node, handle)
	c.count("mount")
	size, _ := c.backend.Size(handle)
	c.mu.Lock()
	if c.mounted[handle] == nil {
		c.mounted[handle] = map[string]bool{}
	}
	c.mounted[handle][node] = true
	owner := c.owners[handle]
	if owner == "" {
		c.owners[handle], c.filesystems[handle] = claim, size // It was blank.
	}
	c.mu.Unlock()
	if nodes := c.mountsOf(handle); len(nodes) > 1 {
		c.violate("volume %s is mounted on %v", handle, nodes)
	}
	if !slices.Contains(c.backend.Nodes(handle), types.NodeName(node)) {
		c.violate("volume %s is mounted on %s and attached to %v", handle, node, c.backend.Nodes(handle))
	}
	if owner != "" && owner != claim {
		c.violate("volume %s has the data of claim %s and is mounted for claim %s", handle, owner, claim)
	}
}

func (c *cluster) unmount(handle, node string) {
	if c.isMounted(handle, node) {
		c.note("%s unmounts %s", node, handle)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mounted[handle], node)
}

// unmountAll is the end of all processes on a node.
func (c *cluster) unmountAll(node string) {
	for _, handle := range c.handles() {
		c.unmount(handle, node)
	}
}

// wipe empties a volume.
func (c *cluster) wipe(handle string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.owners, handle)
	delete(c.filesystems, handle)
	delete(c.content, handle)
}

// growFilesystem has the filesystem of a volume fill it.
func (c *cluster) growFilesystem(handle string) {
	size, _ := c.backend.Size(handle)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filesystems[handle] = max(c.filesystems[handle], size)
}

// handles are all volumes that are or were somewhere, in order.
func (c *cluster) handles() []string {
	all := map[string]bool{}
	for _, handle := range c.backend.Handles() {
		all[handle] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for handle := range c.mounted {
		all[handle] = true
	}
	return slices.Sorted(maps.Keys(all))
}

func unique(handle string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(fake.DefaultPluginName + "/" + handle)
}

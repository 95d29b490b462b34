package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
)

// churn is random work: pods move from node to node at random, and others come and go on nodes that a scheduler chooses,
// while processes are killed and suspended at random.
type churn struct {
	*cluster
	random    *rand.Rand
	volumes   []*movingVolume
	scheduled []*movingVolume // whose pods no one but a scheduler gives a node; they end with their round
	claims    int             // of scheduled volumes, so far
	restores  []restore       // what is restored in this round
	taken     int             // snapshots, so far
	rules     *rules
	rounds    int
	faults    map[string]int // by their names, how often
}

// restore is the restored claim of a scheduled pod.
type restore struct {
	volume   *movingVolume
	snapshot string
	lines    int // were written before the snapshot
}

// movingVolume is a volume and its newest pod.
type movingVolume struct {
	claim  string
	number int // of its newest pod
}

// fault is one that happens in the middle of moves. What it breaks it also mends.
type fault struct {
	name string
	do   func(*churn, context.Context) error
}

var faults = []fault{
	{"nothing", func(*churn, context.Context) error { return nil }},
	{"an agent is killed", (*churn).breakAgent},
	{"a controller is killed", func(c *churn, ctx context.Context) error {
		return c.restart(ctx, c.pick(names("controller", controllerCount)))
	}},
	{"a controller is suspended", func(c *churn, ctx context.Context) error {
		return c.suspend(ctx, c.pick(names("controller", controllerCount)))
	}},
	{"a scheduler is killed", func(c *churn, ctx context.Context) error {
		return c.restart(ctx, c.pick(names("scheduler", schedulerCount)))
	}},
	{"a scheduler is suspended", func(c *churn, ctx context.Context) error {
		return c.suspend(ctx, c.pick(names("scheduler", schedulerCount)))
	}},
	{"a node is suspended", func(c *churn, ctx context.Context) error {
		return c.suspend(ctx, c.pick(names("node", nodeCount)))
	}},
	{"a member of etcd is killed", func(c *churn, ctx context.Context) error {
		return c.restart(ctx, c.pick(names("member", memberCount)))
	}},
	{"a node dies", (*churn).breakNode},
}

// newChurn makes claims with a pod each.
func newChurn(ctx context.Context, c *cluster, r *rules, seed uint64, volumes int) (*churn, error) {
	ch := &churn{cluster: c, rules: r, scheduled: []*movingVolume{{}, {}, {}, {}}, random: rand.New(rand.NewPCG(seed, 0)), faults: make(map[string]int)} //nolint:gosec // It is no secret.
	if err := c.createClass(ctx); err != nil {
		return nil, err
	}
	for _, claim := range names("volume", volumes) {
		if err := c.createClaim(ctx, claim); err != nil {
			return nil, err
		}
		w := &movingVolume{claim: claim}
		ch.volumes = append(ch.volumes, w)
		if err := ch.move(ctx, w); err != nil {
			return nil, err
		}
	}
	return ch, ch.awaitAll(ctx)
}

// round moves some pods, has one fault in the middle of it, and waits until every volume is written to.
func (c *churn) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*stepTimeout)
	defer cancel()
	c.rounds++
	for _, w := range c.volumes {
		if c.random.IntN(3) > 0 {
			if err := c.move(ctx, w); err != nil {
				return err
			}
		}
	}
	if err := c.createScheduled(ctx); err != nil {
		return err
	}
	pause(ctx, time.Duration(c.random.IntN(300))*time.Millisecond)
	f := faults[c.random.IntN(len(faults))]
	c.faults[f.name]++
	if err := f.do(c, ctx); err != nil {
		return fmt.Errorf("round %d: %s: %w", c.rounds, f.name, err)
	}
	if err := errors.Join(c.seeOff(ctx), c.rules.broken()); err != nil {
		return fmt.Errorf("round %d: scheduled pods, after %s: %w", c.rounds, f.name, err)
	}
	if err := c.awaitAll(ctx); err != nil {
		return fmt.Errorf("round %d: after %s: %w", c.rounds, f.name, err)
	}
	return nil
}

func (c *churn) pick(from []string) string { return from[c.random.IntN(len(from))] }

// move has the pod of a volume end, and another one take its place on some node, at once: which of them has the volume is for
// the controller to see to.
func (c *churn) move(ctx context.Context, w *movingVolume) error {
	return c.moveTo(ctx, w, c.pick(names("node", nodeCount)))
}

func (c *churn) moveTo(ctx context.Context, w *movingVolume, node string) error {
	if w.number > 0 {
		if err := c.deletePod(ctx, podName(w.claim, w.number)); err != nil {
			return err
		}
	}
	w.number++
	return c.createPod(ctx, w.claim, w.number, node)
}

// createScheduled creates a pod without a node for each scheduled volume, some with a new claim, which is bound when the pod has a node.
func (c *churn) createScheduled(ctx context.Context) error {
	for _, g := range c.scheduled {
		if g.claim == "" || c.random.IntN(3) == 0 {
			if err := c.renew(ctx, g); err != nil {
				return err
			}
		}
		g.number++
		if err := c.createPod(ctx, g.claim, g.number, ""); err != nil {
			return err
		}
	}
	return nil
}

// renew replaces the claim of a scheduled volume by an empty one, or by one that is restored from a snapshot of the first. The
// first one is deleted while the snapshot is taken.
func (c *churn) renew(ctx context.Context, g *movingVolume) error {
	c.claims++
	claim := fmt.Sprintf("scheduled-%d", c.claims)
	if g.claim != "" && c.random.IntN(3) > 0 {
		return c.restoreClaim(ctx, g, claim)
	}
	if g.claim != "" {
		if err := c.deleteClaim(ctx, g.claim); err != nil {
			return err
		}
	}
	*g = movingVolume{claim: claim}
	return c.createClaimOf(ctx, lateClass, g.claim, "16Mi")
}

// restoreClaim replaces the claim of a scheduled volume by one that is restored from a snapshot of it.
func (c *churn) restoreClaim(ctx context.Context, g *movingVolume, claim string) error {
	c.taken++
	a := restore{volume: g, snapshot: fmt.Sprintf("snapshot-%d", c.taken), lines: c.transcript.written(g.claim)}
	if err := c.createSnapshot(ctx, a.snapshot, g.claim); err != nil {
		return err
	}
	if err := c.awaitProtected(ctx, g.claim); err != nil {
		return err
	}
	if err := c.deleteClaim(ctx, g.claim); err != nil {
		return err
	}
	if err := c.createRestored(ctx, claim, a.snapshot); err != nil {
		return err
	}
	*g = movingVolume{claim: claim}
	c.restores = append(c.restores, a)
	return nil
}

// awaitProtected waits until a claim stays for its snapshot. A claim that is deleted before has none any more.
func (c *churn) awaitProtected(ctx context.Context, claim string) error {
	return persist(ctx, func() error {
		return store.WaitForNone(ctx, c.store, func(snap *snapshotv1.VolumeSnapshot) bool {
			return *snap.Spec.Source.PersistentVolumeClaimName == claim && (snap.Status == nil || snap.Status.BoundVolumeSnapshotContentName == nil)
		})
	})
}

// awaitRestores waits until what is restored has been read, and deletes the snapshots.
func (c *churn) awaitRestores(ctx context.Context) error {
	for _, a := range c.restores {
		err := c.awaitRestored(ctx, podName(a.volume.claim, a.volume.number), a.lines)
		if err := errors.Join(err, c.deleteSnapshot(ctx, a.snapshot)); err != nil {
			return err
		}
	}
	c.restores = nil
	return nil
}

// seeOff waits until each scheduled pod has run, and deletes all of them. Until then volumes that move may have to wait for
// their places.
func (c *churn) seeOff(ctx context.Context) error {
	if err := errors.Join(c.awaitRunning(ctx, c.scheduled), c.awaitRestores(ctx)); err != nil {
		return err
	}
	for _, g := range c.scheduled {
		if err := c.deletePod(ctx, podName(g.claim, g.number)); err != nil {
			return err
		}
	}
	return nil
}

// awaitAll waits until the newest pod of every volume has found what was written, and writes more.
func (c *churn) awaitAll(ctx context.Context) error {
	return errors.Join(c.awaitRunning(ctx, c.volumes), c.transcript.failures())
}

func (c *churn) awaitRunning(ctx context.Context, all []*movingVolume) error {
	for _, w := range all {
		if _, err := c.transcript.await(ctx, 0, "pod "+podName(w.claim, w.number)+" is running after line "); err != nil {
			return err
		}
		if err := c.transcript.awaitWritten(ctx, w.claim, c.transcript.written(w.claim)+1); err != nil {
			return err
		}
	}
	return nil
}

// breakAgent kills an agent, which its parent starts again.
func (c *churn) breakAgent(ctx context.Context) error {
	node, place := c.pick(names("node", nodeCount)), c.transcript.end()
	if err := c.killAgent(node); err != nil {
		return err
	}
	_, err := c.transcript.await(ctx, place, "agent of "+node+" is ready")
	return err
}

// restart kills a process and starts it again.
func (c *churn) restart(ctx context.Context, name string) error {
	if err := c.kill(name); err != nil {
		return err
	}
	pause(ctx, time.Duration(c.random.IntN(1500))*time.Millisecond)
	return c.run(name)
}

// suspend has a process stand still, with all that it started, half of the time for longer than its lease: when it goes on, another one
// may have taken over.
func (c *churn) suspend(ctx context.Context, name string) error {
	group := -c.processes[name].cmd.Process.Pid
	if err := syscall.Kill(group, syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, time.Duration(c.random.IntN(2*int(leaseTime))))
	return syscall.Kill(group, syscall.SIGCONT)
}

// breakNode kills a node, says so, has its pods run elsewhere, wherever a scheduler says, and starts the node again.
func (c *churn) breakNode(ctx context.Context) error {
	node := c.pick(names("node", nodeCount))
	if err := c.kill(node); err != nil {
		return err
	}
	dropped, err := c.dropPods(ctx, node)
	errs := []error{err, c.fence(ctx, node)}
	for _, w := range slices.Concat(c.volumes, c.scheduled) {
		if slices.Contains(dropped, podName(w.claim, w.number)) {
			errs = append(errs, c.moveTo(ctx, w, ""))
		}
	}
	return errors.Join(append(errs, c.revive(ctx, node))...)
}

// dropPods takes the pods of a dead node away, and returns their names.
func (c *churn) dropPods(ctx context.Context, node string) ([]string, error) {
	var dropped []string
	err := persist(ctx, func() error {
		pods, _, err := store.ListOf[*v1.Pod](ctx, c.store, "")
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if pod.Spec.NodeName != node {
				continue
			}
			if err := c.dropPod(ctx, pod.Name); err != nil {
				return err
			}
			dropped = append(dropped, pod.Name)
		}
		return nil
	})
	return dropped, err
}

// finish gives all volumes up and waits until nothing is left of them.
func (c *churn) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	all := slices.Concat(c.volumes, c.scheduled)
	for _, w := range all {
		if err := c.deletePod(ctx, podName(w.claim, w.number)); err != nil {
			return err
		}
	}
	if err := awaitNone(ctx, c.store, func(*v1.Pod) bool { return true }); err != nil {
		return err
	}
	for _, w := range all {
		if err := c.deleteClaim(ctx, w.claim); err != nil {
			return err
		}
	}
	if err := awaitNone(ctx, c.store, func(*v1.PersistentVolume) bool { return true }); err != nil {
		return err
	}
	if err := c.awaitNoSnapshots(ctx); err != nil {
		return err
	}
	return c.checkNothingLeft(ctx)
}

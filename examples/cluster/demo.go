package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/loop"
)

// step is one step of the demo.
type step struct {
	title string
	run   func(context.Context, *cluster) error
}

// claimName is the claim of most steps.
const claimName = "diary"

// steps are the steps of the demo, in order.
var steps = []step{
	{"a claim gets a volume, and a pod on node-1 writes to it", firstPod},
	{"the pod moves to node-2, and goes on where it was", moves(2, "node-2")},
	{"the agent of node-2 is killed: its mounts stay, and it finds them", killedAgent},
	{"the controller that works is killed: the other one moves the pod to node-3", killedController},
	{"a member of etcd is killed, and the pod moves to node-1", killedMember},
	{"node-1 dies: its volume is held back until it is known to be dead, and goes to node-2 then", deadNode},
	{"a pod comes without a node: the scheduler finds one, though not for a volume that is too large", placedPod},
	{"a snapshot of its volume is taken, and a pod on a volume that is restored from it goes on where the first one was", restoredPod},
	{"the claims are deleted, and their volumes with them", deleteAll},
}

// errNotRoot is the error of a demo that cannot begin.
var errNotRoot = errors.New("the nodes mount and have loop devices: run it as root")

// runDemo runs the demo: it makes a directory of its own, starts a cluster there, runs the steps, ends everything and takes
// the directory away. It is whole in the end, or the error names what is left.
func runDemo(ctx context.Context, o options, out *output) error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	if o.dir != "" {
		if err := os.MkdirAll(o.dir, 0o700); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(o.dir, "volumekit-cluster-")
	if err != nil {
		return err
	}
	out.say("everything lies in %s", dir)
	return errors.Join(runDemoIn(ctx, dir, o, out), clean(dir))
}

func runDemoIn(ctx context.Context, dir string, o options, out *output) (err error) {
	if o.csi {
		if err := checkDemoDir(dir); err != nil {
			return err
		}
	}
	c, err := newCluster(ctx, dir, o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.killAll()) }()
	for i, s := range steps {
		out.say("\n%d/%d  %s", i+1, len(steps), s.title)
		if err := c.runStep(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
	}
	out.say("\nthe processes end")
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return c.stopAll(ctx)
}

func (c *cluster) runStep(ctx context.Context, s step) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return errors.Join(s.run(ctx, c), c.transcript.failures())
}

func firstPod(ctx context.Context, c *cluster) error {
	if err := c.createClass(ctx); err != nil {
		return err
	}
	if err := c.createClaim(ctx, claimName); err != nil {
		return err
	}
	if err := c.createPod(ctx, claimName, 1, "node-1"); err != nil {
		return err
	}
	return c.transcript.awaitWritten(ctx, claimName, 10)
}

// moves returns the step in which the pod that runs makes room for the next one, on another node.
func moves(number int, node string) func(context.Context, *cluster) error {
	return func(ctx context.Context, c *cluster) error {
		if err := c.deletePod(ctx, podName(claimName, number-1)); err != nil {
			return err
		}
		if err := c.createPod(ctx, claimName, number, node); err != nil {
			return err
		}
		return c.awaitRunning(ctx, number)
	}
}

// awaitRunning waits until a pod has found every line that was written before, and writes more.
func (c *cluster) awaitRunning(ctx context.Context, number int) error {
	line, err := c.transcript.await(ctx, 0, "pod "+podName(claimName, number)+" is running after line ")
	if err != nil {
		return err
	}
	return c.transcript.awaitWritten(ctx, claimName, lastNumber(line)+5)
}

// lastNumber returns the number at the end of a line.
func lastNumber(line string) int {
	var number int
	_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &number)
	return number
}

func killedAgent(ctx context.Context, c *cluster) error {
	place := c.transcript.end()
	if err := c.killAgent("node-2"); err != nil {
		return err
	}
	if _, err := c.transcript.await(ctx, place, "pod "+podName(claimName, 2)+" is running after line "); err != nil {
		return err
	}
	return c.transcript.awaitWritten(ctx, claimName, c.transcript.written(claimName)+5)
}

func killedController(ctx context.Context, c *cluster) error {
	leader, err := c.leader(ctx)
	if err != nil {
		return err
	}
	if err := c.kill(leader); err != nil {
		return err
	}
	if err := moves(3, "node-3")(ctx, c); err != nil {
		return err
	}
	return c.run(leader)
}

// leader returns the name of the controller that works.
func (c *cluster) leader(ctx context.Context) (string, error) {
	if _, err := c.transcript.await(ctx, 0, leads); err != nil {
		return "", err
	}
	return c.transcript.lastFrom(leads)
}

func killedMember(ctx context.Context, c *cluster) error {
	if err := c.kill("member-1"); err != nil {
		return err
	}
	if err := moves(4, "node-1")(ctx, c); err != nil {
		return err
	}
	return c.run("member-1")
}

func deadNode(ctx context.Context, c *cluster) error {
	place := c.transcript.end()
	if err := c.kill("node-1"); err != nil {
		return err
	}
	// Its pod is to run elsewhere. The volume may be used on node-1 for all that the cluster knows.
	if err := c.createPod(ctx, claimName, 5, "node-2"); err != nil {
		return err
	}
	if _, err := c.transcript.await(ctx, place, "FailedAttachVolume"); err != nil {
		return err
	}
	if _, err := c.transcript.await(ctx, place, "node-1 is silent"); err != nil {
		return err
	}
	if err := c.dropPod(ctx, podName(claimName, 4)); err != nil {
		return err
	}
	// It was killed: there is no doubt.
	if err := c.fence(ctx, "node-1"); err != nil {
		return err
	}
	if err := c.awaitRunning(ctx, 5); err != nil {
		return err
	}
	return c.revive(ctx, "node-1")
}

// revive starts a node that was killed and fenced.
func (c *cluster) revive(ctx context.Context, node string) error {
	place := c.transcript.end()
	if err := c.run(node); err != nil {
		return err
	}
	if _, err := c.transcript.await(ctx, place, "agent of "+node+" is ready"); err != nil {
		return err
	}
	return c.unfence(ctx, node)
}

// The claims of the step in which a scheduler places pods.
const (
	smallClaim = "small"
	largeClaim = "large"
	// restoredClaim is restored from a snapshot of smallClaim's volume.
	restoredClaim = "restored"
	snapshotName  = "small-then"
)

// placedPod has two pods placed, of which one gets no node: there is not enough storage for its volume.
func placedPod(ctx context.Context, c *cluster) error {
	for claim, size := range map[string]string{smallClaim: "16Mi", largeClaim: "1Pi"} {
		if err := c.createClaimOf(ctx, lateClass, claim, size); err != nil {
			return err
		}
		if err := c.createPod(ctx, claim, 1, ""); err != nil {
			return err
		}
	}
	if _, err := c.transcript.await(ctx, 0, "pod "+podName(largeClaim, 1)+" waits for a node"); err != nil {
		return err
	}
	return c.transcript.awaitWritten(ctx, smallClaim, 5)
}

// restoredPod has the first pod end, takes a snapshot of its volume, and has another pod on what is restored from it.
func restoredPod(ctx context.Context, c *cluster) error {
	if err := c.deletePod(ctx, podName(smallClaim, 1)); err != nil {
		return err
	}
	if err := c.createSnapshot(ctx, snapshotName, smallClaim); err != nil {
		return err
	}
	if err := c.createRestored(ctx, restoredClaim, snapshotName); err != nil {
		return err
	}
	if err := c.createPod(ctx, restoredClaim, 1, ""); err != nil {
		return err
	}
	if err := c.awaitRestored(ctx, podName(restoredClaim, 1), c.transcript.written(smallClaim)); err != nil {
		return err
	}
	return c.deleteSnapshot(ctx, snapshotName)
}

// awaitRestored waits until a pod of a restored claim runs, and says if any of the lines that were written before its snapshot is
// missing.
func (c *cluster) awaitRestored(ctx context.Context, pod string, lines int) error {
	line, err := c.transcript.await(ctx, 0, "pod "+pod+" is running after line ")
	if err != nil {
		return err
	}
	if found := lastNumber(line); found < lines {
		return fmt.Errorf("pod %q found %d lines on its restored volume, and %d had been written before the snapshot", pod, found, lines)
	}
	return nil
}

func deleteAll(ctx context.Context, c *cluster) error {
	for _, pod := range []string{podName(claimName, 5), podName(restoredClaim, 1), podName(largeClaim, 1)} {
		if err := c.deletePod(ctx, pod); err != nil {
			return err
		}
	}
	if err := awaitNone(ctx, c.store, func(*v1.Pod) bool { return true }); err != nil {
		return err
	}
	for _, claim := range []string{claimName, smallClaim, restoredClaim, largeClaim} {
		if err := c.deleteClaim(ctx, claim); err != nil {
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

// checkNothingLeft says what is left of the volumes in the world.
func (c *cluster) checkNothingLeft(ctx context.Context) error {
	images, err := os.ReadDir(imagesIn(c.dir))
	if err != nil {
		return err
	}
	var errs []error
	for _, image := range images {
		errs = append(errs, fmt.Errorf("the image %s is left", image.Name()))
	}
	devices, err := devicesIn(ctx, c.dir)
	for _, d := range devices {
		errs = append(errs, fmt.Errorf("%s has the image %s", d.Path, d.BackingPath))
	}
	return errors.Join(append(errs, err)...)
}

// imagesIn returns where the images of a demo are.
func imagesIn(dir string) string { return filepath.Join(dir, "shared", "images") }

// devicesIn returns the loop devices that have an image of a demo. Files are compared, not paths: a device tells the path that
// its file has in the mount namespace in which it was opened.
func devicesIn(ctx context.Context, dir string) ([]loop.Device, error) {
	images, err := os.ReadDir(imagesIn(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all, err := loop.New(loop.Options{}).Devices(ctx)
	if err != nil {
		return nil, err
	}
	var found []loop.Device
	for _, image := range images {
		info, err := image.Info()
		if err != nil {
			return nil, err
		}
		for _, d := range all {
			if d.Has(info) {
				found = append(found, d)
			}
		}
	}
	return found, nil
}

// clean takes the directory of a demo away, whose processes have ended and their mounts with them. A node that was killed, and
// not started again, has left the loop devices of its volumes.
func clean(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	devices, err := devicesIn(ctx, dir)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if err := loop.New(loop.Options{}).Detach(ctx, d); err != nil {
			return fmt.Errorf("%s is left, with %s in %q: %w", d.Path, d.BackingPath, dir, err)
		}
	}
	return os.RemoveAll(dir)
}

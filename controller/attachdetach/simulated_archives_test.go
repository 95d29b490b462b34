package attachdetach_test

import (
	"context"
	"errors"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/volume"
)

// This file is the populator of the simulation, and the filesystems of the volumes that it fills.

var errHalf = errors.New("the archive cannot be read")

// archives fills volumes for the controller of one process.
type archives struct {
	cluster *cluster
	process string
}

var (
	_ persistentvolume.Filesystems = archives{}
	_ persistentvolume.Populator   = archives{}
)

// Fill implements persistentvolume.Filesystems.
func (a archives) Fill(ctx context.Context, pv *v1.PersistentVolume, fill func(ctx context.Context, dir string) error) error {
	c, handle := a.cluster, pv.Spec.CSI.VolumeHandle
	if err := a.step(ctx, "empties "+handle); err != nil {
		return err
	}
	c.write(handle, "")
	if err := fill(ctx, "/"+handle); err != nil {
		return err // It is still mounted.
	}
	if err := a.step(ctx, "unmounts "+handle); err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.filling, handle)
	c.mu.Unlock()
	return nil
}

// Release implements persistentvolume.Filesystems.
func (a archives) Release(ctx context.Context, pv *v1.PersistentVolume) error {
	if err := a.step(ctx, "releases "+pv.Name); err != nil {
		return err
	}
	a.cluster.mu.Lock()
	defer a.cluster.mu.Unlock()
	delete(a.cluster.filling, pv.Spec.CSI.VolumeHandle)
	return nil
}

// Populate implements persistentvolume.Populator.
func (a archives) Populate(ctx context.Context, request persistentvolume.PopulateRequest) (string, error) {
	c, handle := a.cluster, strings.TrimPrefix(request.Dir, "/")
	c.write(handle, "half")
	sleep(ctx, time.Duration(c.luck(8))*time.Second)
	if err := a.step(ctx, "fills "+handle); err != nil {
		return "", err
	}
	c.write(handle, request.Claim.Spec.DataSourceRef.Name)
	c.count("fill")
	return "digest", nil
}

// step waits for the turn of the populator, and returns the error of a step that is not made.
func (a archives) step(ctx context.Context, what string) error {
	c := a.cluster
	if !c.turns.TakeUnless(ctx, a.process+" "+what) {
		return ctx.Err()
	}
	switch luck := c.luck(100); {
	case ctx.Err() != nil:
		return ctx.Err()
	case luck < 5:
		return errHalf
	case luck < 10:
		return volume.Transient(errHalf)
	}
	c.note("%s %s", a.process, what)
	return nil
}

// write writes the content of a volume that is being filled. It is there that a volume which a claim has would lose its data.
func (c *cluster) write(handle, content string) {
	if nodes := c.mountsOf(handle); len(nodes) > 0 {
		c.violate("volume %s is filled and mounted on %v", handle, nodes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filling[handle] = true
	c.content[handle] = content
}

// whyUnfilled returns what is wrong with the content of a volume that is a claim's, "" if it is what the claim asks for.
func (c *cluster) whyUnfilled(claim *v1.PersistentVolumeClaim, handle string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ref := claim.Spec.DataSourceRef
	switch {
	case ref == nil:
		return ""
	case c.filling[handle]:
		return "is mounted by a populator"
	case c.content[handle] != ref.Name:
		return "holds \"" + c.content[handle] + "\""
	}
	return ""
}

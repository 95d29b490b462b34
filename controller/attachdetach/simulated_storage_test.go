package attachdetach_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file is the storage of the simulation: a plugin that looks at what it is asked for, and whose calls fail and take their time.

// noMounts is the mounter of a plugin that mounts nothing here.
type noMounts struct{ mount.Interface }

// stoppedFor is for how long a process is stopped in the middle of a call: longer than a lease lives.
const stoppedFor = 40 * time.Second

// largest is more than which no volume can have.
const largest = 8 << 30

// storage is the plugin of one process.
type storage struct {
	*fake.Plugin

	cluster *cluster
	process string
}

func (c *cluster) newStorage(process string) *storage {
	return &storage{Plugin: fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}, Backend: c.backend, MaxSize: largest, IgnoreFencing: c.bugs.noFencing}), cluster: c, process: process}
}

// begin begins a call: it may take its time, and what is to become of it is thrown. The error of a call whose caller did not wait for
// it is uncertain.
func (s *storage) begin(ctx context.Context, method fake.Method, name string) error {
	s.turn(method, name)
	switch luck := s.cluster.luck(100); {
	case luck < 4:
		s.Inject(method, fake.Fail(volume.Transient(errors.New("busy"))))
	case luck < 8:
		s.Inject(method, fake.FailAfter(volume.Uncertain(errNetwork)))
	case luck < 10:
		s.Inject(method, fake.Fail(errors.New("refused")))
	case luck < 25:
		sleep(ctx, time.Duration(luck)*time.Second/2)
		s.turn(method, name)
	case luck < s.cluster.bugs.stops() && (method == fake.MethodAttach || method == fake.MethodDetach):
		// The process is stopped, perhaps beyond its lease, and then finishes the call.
		time.Sleep(stoppedFor)
		s.turn(method, name)
		return nil
	}
	if ctx.Err() != nil {
		return volume.Uncertain(fmt.Errorf("the caller of %s has ended: %w", method, ctx.Err()))
	}
	return nil
}

func (s *storage) turn(method fake.Method, name string) {
	s.cluster.turn(s.process, string(method)+" "+name)
}

func (s *storage) NewAttacher() (volume.Attacher, error) {
	a, err := s.Plugin.NewAttacher()
	return attacher{a, s}, err
}

type attacher struct {
	volume.Attacher

	storage *storage
}

func (a attacher) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	c := a.storage.cluster
	handle := spec.PersistentVolume.Spec.CSI.VolumeHandle
	if err := a.storage.begin(ctx, fake.MethodAttach, handle+" to "+string(node)); err != nil {
		return "", err
	}
	if !slices.Contains(c.backend.Handles(), handle) {
		return "", fmt.Errorf("there is no volume %s", handle)
	}
	others := slices.DeleteFunc(c.backend.Nodes(handle), func(other types.NodeName) bool { return other == node })
	path, err := a.Attacher.Attach(ctx, spec, node)
	c.note("attach %s to %s: %v", handle, node, err)
	if errors.Is(err, volume.ErrFenced) {
		c.count("fenced")
	} else if len(others) > 0 {
		c.violate("volume %s is attached to %s, and was to be attached to %s", handle, others, node)
	}
	return path, err
}

func (s *storage) NewDetacher() (volume.Detacher, error) {
	d, err := s.Plugin.NewDetacher()
	return detacher{d, s}, err
}

type detacher struct {
	volume.Detacher

	storage *storage
}

func (d detacher) Detach(ctx context.Context, name string, node types.NodeName) error {
	c, began := d.storage.cluster, time.Now()
	if err := d.storage.begin(ctx, fake.MethodDetach, name+" from "+string(node)); err != nil {
		return err
	}
	mounted := c.isMounted(name, string(node))
	err := d.Detacher.Detach(ctx, name, node)
	c.note("detach %s from %s: %v", name, node, err)
	if errors.Is(err, volume.ErrFenced) {
		c.count("fenced")
	} else if mounted {
		c.forced(ctx, name, string(node), began)
	}
	return err
}

// forced is told that a volume is taken from a node that has it mounted, by a call that began then. Whatever still runs there cannot
// write any more.
func (c *cluster) forced(ctx context.Context, handle, name string, began time.Time) {
	node, err := store.Get[*v1.Node](context.WithoutCancel(ctx), c.world, "", name)
	c.mu.Lock()
	since, well := c.wellSince[name]
	unwanted := time.Since(c.wantedAt[handle+" "+name])
	c.mu.Unlock()
	switch {
	case err == nil && isFenced(node):
		c.count("forced by a fence")
	case well && began.Sub(since) > time.Second/2:
		c.violate("volume %s is detached from %s, which has it mounted and is well", handle, name)
	case unwanted > 0 && unwanted < maxWait-2*longestStep && !c.wantedOn(ctx, name)[handle].wanted:
		c.violate("volume %s is detached by force from %s, which has had no more than %v to let go of it", handle, name, unwanted)
	default:
		c.count("forced by time")
	}
	c.unmount(handle, name)
}

func (s *storage) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	p, err := s.Plugin.NewProvisioner(options)
	return provisioner{p, s, options.PVName}, err
}

type provisioner struct {
	volume.Provisioner

	storage *storage
	name    string
}

func (p provisioner) Provision(ctx context.Context, node *v1.Node, topologies []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	if err := p.storage.begin(ctx, fake.MethodProvision, p.name); err != nil {
		return nil, err
	}
	pv, err := p.Provisioner.Provision(ctx, node, topologies)
	if err != nil {
		return nil, err
	}
	c := p.storage.cluster
	if c.bugs.scheduled {
		inZone(pv, c.zoneFor(pv.Name, node))
	}
	c.note("provision %s", pv.Name)
	if c.luck(5) == 0 {
		return nil, volume.Uncertain(errNetwork)
	}
	return pv, nil
}

func (s *storage) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	d, err := s.Plugin.NewDeleter(spec)
	return deleter{d, s, spec.PersistentVolume}, err
}

type deleter struct {
	volume.Deleter

	storage *storage
	pv      *v1.PersistentVolume
}

func (d deleter) Delete(ctx context.Context) error {
	if err := d.storage.begin(ctx, fake.MethodDelete, d.pv.Name); err != nil {
		return err
	}
	c, handle := d.storage.cluster, d.pv.Spec.CSI.VolumeHandle
	c.destroyed(ctx, d.pv, "deleted")
	err := d.Deleter.Delete(ctx)
	c.note("delete %s: %v", handle, err)
	if !slices.Contains(c.backend.Handles(), handle) {
		c.wipe(handle)
		c.mu.Lock()
		delete(c.zones, handle)
		c.mu.Unlock()
		c.count("delete")
	}
	return err
}

// Recycle implements volume.RecyclableVolumePlugin.
func (s *storage) Recycle(ctx context.Context, name string, spec *volume.Spec, recorder volume.RecycleEventRecorder) error {
	if err := s.begin(ctx, fake.MethodRecycle, name); err != nil {
		return err
	}
	s.cluster.destroyed(ctx, spec.PersistentVolume, "recycled")
	err := s.Plugin.Recycle(ctx, name, spec, recorder)
	s.cluster.note("recycle %s: %v", name, err)
	if err == nil {
		s.cluster.wipe(spec.PersistentVolume.Spec.CSI.VolumeHandle)
		s.cluster.count("recycle")
	}
	return err
}

// destroyed checks whether a node or a claim has the storage that is about to be destroyed.
func (c *cluster) destroyed(ctx context.Context, pv *v1.PersistentVolume, how string) {
	handle := pv.Spec.CSI.VolumeHandle
	if nodes := c.mountsOf(handle); len(nodes) > 0 {
		c.violate("volume %s is %s and mounted on %v", handle, how, nodes)
	}
	if nodes := c.backend.Nodes(handle); len(nodes) > 0 {
		c.violate("volume %s is %s and attached to %v", handle, how, nodes)
	}
	c.mu.Lock()
	owner, filling := c.owners[handle], c.filling[handle]
	c.mu.Unlock()
	if filling {
		c.violate("volume %s is %s and mounted by a populator", handle, how)
	}
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](context.WithoutCancel(ctx), c.world, "")
	if err != nil {
		c.violate("%v", err)
	}
	for _, claim := range claims {
		if claim.UID == owner || claim.Spec.VolumeName == pv.Name && claim.UID == pv.Spec.ClaimRef.UID {
			c.violate("volume %s is %s, and claim %s is there", handle, how, claim.Name)
		}
	}
}

// ExpandVolumeDevice implements volume.ExpandableVolumePlugin.
func (s *storage) ExpandVolumeDevice(ctx context.Context, spec *volume.Spec, to, from resource.Quantity) (resource.Quantity, error) {
	defer s.cluster.changing(s.process, spec.PersistentVolume.Spec.CSI.VolumeHandle, "expand")()
	if err := s.begin(ctx, fake.MethodExpandVolume, spec.Name()); err != nil {
		return from, err
	}
	if !slices.Contains(s.cluster.backend.Handles(), spec.PersistentVolume.Spec.CSI.VolumeHandle) {
		return from, fmt.Errorf("there is no volume %s", spec.Name())
	}
	s.cluster.mu.Lock()
	s.cluster.grownFor[spec.PersistentVolume.Spec.CSI.VolumeHandle] = spec.PersistentVolume.Spec.ClaimRef.UID
	s.cluster.mu.Unlock()
	size, err := s.Plugin.ExpandVolumeDevice(ctx, spec, to, from)
	s.cluster.note("expand %s to %s: %v", spec.Name(), to.String(), err)
	if err == nil {
		s.cluster.count("expand")
	}
	return size, err
}

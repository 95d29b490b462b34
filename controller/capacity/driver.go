package capacity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// classSegment is a class and the key of a segment. Each pair has one object.
type classSegment struct{ class, segment string }

// item is an item of a driver's queue: one pair, or, with plan, the search for all pairs.
type item struct {
	plan bool
	pair classSegment
}

// driver maintains the objects of one plugin. It has its own goroutine: a hung plugin delays no other.
type driver struct {
	*Controller

	plugin string
	name   string // of the driver
	queue  *workqueue.Queue[item]
	calls  calls
	// failures counts the failed plans in a row. Only the goroutine uses it.
	failures failures

	mu    sync.Mutex // not held during I/O or calls of plugins
	pairs map[classSegment]*state
}

// state is the state of a pair.
type state struct {
	segment segment
	// published is the content of the object, or the content being written; nil if it is unknown. driver.mu guards it.
	published *storagev1.CSIStorageCapacity
	// failures counts the failed attempts in a row. Only the driver's goroutine uses it.
	failures failures
}

// failures are those in a row.
type failures struct {
	count    int
	reported bool
}

// add counts a failure, and reports whether to log it and record an event: for the first one, unless it only needs a
// retry.
func (f *failures) add(err error) (tell bool) {
	f.count++
	tell = !f.reported && !errors.Is(err, store.ErrConflict)
	f.reported = f.reported || tell
	return tell
}

// end resets the count, and reports whether a failure was reported.
func (f *failures) end() (told bool) {
	told = f.reported
	*f = failures{}
	return told
}

func newDriver(c *Controller, plugin string) *driver {
	return &driver{
		Controller: c, plugin: plugin, name: volume.DriverOfPluginName(plugin), queue: workqueue.New[item](), pairs: map[classSegment]*state{},
	}
}

// plan makes the driver search for all pairs.
func (d *driver) plan() { d.queue.Add(item{plan: true}) }

// refreshClass makes the driver read the capacity of a class in all segments.
func (d *driver) refreshClass(class string) {
	d.refreshWhere(func(p classSegment, _ *state) bool { return p.class == class })
}

// refreshNear makes the driver read the capacity of the segments that can have the volume, for all classes: classes may
// share storage.
func (d *driver) refreshNear(pv *v1.PersistentVolume) {
	d.refreshWhere(func(_ classSegment, s *state) bool { return s.segment.mayHave(pv) })
}

func (d *driver) refreshWhere(concerns func(classSegment, *state) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p, s := range d.pairs {
		if concerns(p, s) {
			d.queue.Add(item{pair: p})
		}
	}
}

// objectChanged makes the driver check an object that differs from the driver's last write.
func (d *driver) objectChanged(object *storagev1.CSIStorageCapacity) {
	p := classSegmentOf(object)
	_, exists := d.objects.Get(store.NameOf(object))
	d.mu.Lock()
	s := d.pairs[p]
	asWritten := s != nil && s.published != nil && exists && object.Name == d.objectName(p) && sameCapacity(object, s.published)
	d.mu.Unlock()
	switch {
	case asWritten:
	case s == nil || object.Name != d.objectName(p):
		d.plan()
	default:
		d.queue.Add(item{pair: p})
	}
}

// run works until ctx ends.
func (d *driver) run(ctx context.Context) {
	for {
		next, ok := d.queue.Get(ctx)
		if !ok {
			return
		}
		if next.plan {
			d.planNow(ctx)
			continue
		}
		d.refresh(ctx, next.pair)
	}
}

// planNow finds all pairs, queues new ones, and deletes the objects of removed ones.
func (d *driver) planNow(ctx context.Context) {
	_, err := d.plugins.FindCapacityPluginByName(d.plugin)
	wanted := d.wanted()
	if err != nil && slices.Contains(d.plugins.PluginNames(), d.plugin) {
		wanted = nil // The plugin is registered and does not report capacity.
	}
	d.keepOnly(wanted)
	err = d.deleteOthers(ctx, wanted)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		d.failures.end()
	} else if d.failures.add(err) {
		d.options.Logger.Warn("a capacity that is of no use any more stays for now", "driver", d.name, "error", err)
	}
	d.refreshLater(item{plan: true}, d.failures)
}

// refreshLater queues an item again after the back-off of its failures, or after the poll interval.
func (d *driver) refreshLater(i item, f failures) {
	wait := d.options.policy().Delay(f.count)
	if f.count == 0 {
		wait = d.options.PollInterval
	}
	if wait > 0 {
		d.queue.AddAt(i, time.Now().Add(wait))
	}
}

// wanted returns the pairs of the plugin's classes and segments.
func (d *driver) wanted() map[classSegment]segment {
	segments, wanted := d.segmentsOf(d.plugin), map[classSegment]segment{}
	for _, class := range d.classes.All() {
		if class.Provisioner != d.plugin || !d.options.ImmediateBinding && !objects.WaitsForConsumer(class) {
			continue
		}
		for key, s := range segments {
			wanted[classSegment{class.Name, key}] = s
		}
	}
	return wanted
}

// keepOnly forgets pairs that are not wanted, and queues new ones.
func (d *driver) keepOnly(wanted map[classSegment]segment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.pairs {
		if _, ok := wanted[p]; !ok {
			delete(d.pairs, p)
		}
	}
	for p, s := range wanted {
		if d.pairs[p] == nil {
			d.pairs[p] = &state{segment: s}
			d.queue.Add(item{pair: p})
		}
	}
}

// deleteOthers deletes objects of this controller and driver that belong to no wanted pair, and duplicates. An object
// for a class of another plugin with the same driver name belongs to that plugin.
func (d *driver) deleteOthers(ctx context.Context, wanted map[classSegment]segment) error {
	var errs []error
	for _, object := range d.ours.Get(d.name) {
		p := classSegmentOf(object)
		if _, ok := wanted[p]; ok && object.Name == d.objectName(p) {
			continue
		}
		class, ok := d.classes.Get(objects.Named(object.StorageClassName))
		if ok && class.Provisioner != d.plugin && volume.DriverOfPluginName(class.Provisioner) == d.name {
			continue
		}
		if err := store.Delete(ctx, d.store, object); err != nil && !errors.Is(err, store.ErrNotFound) {
			errs = append(errs, fmt.Errorf("deleting the capacity %q of class %q: %w", store.NameOf(object), object.StorageClassName, err))
		}
	}
	return errors.Join(errs...)
}

// refresh reads the capacity of a pair from the plugin, and publishes it.
func (d *driver) refresh(ctx context.Context, p classSegment) {
	d.mu.Lock()
	s := d.pairs[p]
	d.mu.Unlock()
	class, ok := d.classes.Get(objects.Named(p.class))
	if s == nil || !ok {
		return // A plan follows.
	}
	plugin, err := d.plugins.FindCapacityPluginByName(d.plugin)
	if err != nil {
		d.refreshLater(item{pair: p}, failures{}) // The plugin may be on another machine, removed, or not added yet: its objects stay.
		return
	}
	capacity, err := d.calls.capacity(ctx, plugin, volume.CapacityOptions{Parameters: class.DeepCopy().Parameters, Segment: cloneOf(s.segment)}, d.options.CallTimeout)
	if err == nil {
		err = d.publish(ctx, p, s, capacity)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil && s.failures.add(err) {
		d.recordFailure(class, p, err)
	}
	if err == nil && s.failures.end() {
		d.options.Logger.Info("the capacity is known again", "driver", d.name, "class", p.class, "segment", p.segment)
	}
	d.refreshLater(item{pair: p}, s.failures)
}

// recordFailure logs, and records in an event, that a capacity stays unchanged.
func (d *driver) recordFailure(class *storagev1.StorageClass, p classSegment, err error) {
	d.options.Logger.Warn("the capacity is not known and stays as it is", "driver", d.name, "class", p.class, "segment", p.segment, "error", err)
	if d.options.Events != nil {
		d.options.Events.Eventf(class, v1.EventTypeWarning, EventCapacityFailed,
			"the capacity in segment %q is not known and stays as it is: %v", p.segment, err)
	}
}

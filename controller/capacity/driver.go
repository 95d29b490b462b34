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

// pair is a class and a segment, by its key: what there is one object for.
type pair struct{ class, segment string }

// item is what a driver looks at: one pair, or, with plan, which pairs there are.
type item struct {
	plan bool
	pair pair
}

// driver keeps the objects of one plugin, with one goroutine, so that a plugin that hangs holds up no other.
type driver struct {
	*Controller

	plugin string
	name   string // of the driver
	queue  *workqueue.Queue[item]
	calls  calls
	// failures are the plans that failed in a row. Only the goroutine uses it.
	failures failures

	mu    sync.Mutex // no call that waits is made under it
	pairs map[pair]*state
}

// state is what is known of a pair.
type state struct {
	segment segment
	// published is what the object says, or is being made to say; nil if that is not known. It is guarded by driver.mu.
	published *storagev1.CSIStorageCapacity
	// failures are the attempts that failed in a row. Only the driver's goroutine uses it.
	failures failures
}

// failures are those in a row.
type failures struct {
	count    int
	reported bool
}

// add adds one, and reports whether people are to be told: of the first, but not of one that only has to be tried again.
func (f *failures) add(err error) (tell bool) {
	f.count++
	tell = !f.reported && !errors.Is(err, store.ErrConflict)
	f.reported = f.reported || tell
	return tell
}

// end ends the row, and reports whether people were told of it.
func (f *failures) end() (told bool) {
	told = f.reported
	*f = failures{}
	return told
}

func newDriver(c *Controller, plugin string) *driver {
	return &driver{
		Controller: c, plugin: plugin, name: volume.DriverOfPluginName(plugin), queue: workqueue.New[item](), pairs: map[pair]*state{},
	}
}

// plan has the driver find out which pairs there are.
func (d *driver) plan() { d.queue.Add(item{plan: true}) }

// refreshClass has the driver ask for the capacity of a class in all segments.
func (d *driver) refreshClass(class string) {
	d.refreshWhere(func(p pair, _ *state) bool { return p.class == class })
}

// refreshNear has the driver ask for the capacity of the segments that may have a volume, for all classes: they may share their storage.
func (d *driver) refreshNear(pv *v1.PersistentVolume) {
	d.refreshWhere(func(_ pair, s *state) bool { return s.segment.mayHave(pv) })
}

func (d *driver) refreshWhere(concerns func(pair, *state) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p, s := range d.pairs {
		if concerns(p, s) {
			d.queue.Add(item{pair: p})
		}
	}
}

// objectChanged has the driver look at an object that is not as the driver has written it.
func (d *driver) objectChanged(object *storagev1.CSIStorageCapacity) {
	p := pairOf(object)
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

// planNow finds out which pairs there are, has new ones looked at, and deletes the objects of those that are gone.
func (d *driver) planNow(ctx context.Context) {
	_, err := d.plugins.FindCapacityPluginByName(d.plugin)
	wanted := d.wanted()
	if err != nil && slices.Contains(d.plugins.PluginNames(), d.plugin) {
		wanted = nil // The plugin is here, and cannot say its capacity.
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
	d.lookAgain(item{plan: true}, d.failures)
}

// lookAgain has an item looked at after the back-off of its failures, or after the poll interval.
func (d *driver) lookAgain(i item, f failures) {
	wait := d.options.policy().Delay(f.count)
	if f.count == 0 {
		wait = d.options.PollInterval
	}
	if wait > 0 {
		d.queue.AddAt(i, time.Now().Add(wait))
	}
}

// wanted returns the pairs of the plugin's classes and segments.
func (d *driver) wanted() map[pair]segment {
	segments, wanted := d.segmentsOf(d.plugin), map[pair]segment{}
	for _, class := range d.classes.All() {
		if class.Provisioner != d.plugin || !d.options.ImmediateBinding && !objects.WaitsForConsumer(class) {
			continue
		}
		for key, s := range segments {
			wanted[pair{class.Name, key}] = s
		}
	}
	return wanted
}

// keepOnly forgets pairs that are not wanted, and has new ones looked at.
func (d *driver) keepOnly(wanted map[pair]segment) {
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

// deleteOthers deletes the objects of this controller and driver that are of no wanted pair, or a second one of it. Those of a class
// of another plugin with the same driver's name are that plugin's.
func (d *driver) deleteOthers(ctx context.Context, wanted map[pair]segment) error {
	var errs []error
	for _, object := range d.ours.Get(d.name) {
		p := pairOf(object)
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

// refresh asks the plugin for the capacity of a pair, and publishes it.
func (d *driver) refresh(ctx context.Context, p pair) {
	d.mu.Lock()
	s := d.pairs[p]
	d.mu.Unlock()
	class, ok := d.classes.Get(objects.Named(p.class))
	if s == nil || !ok {
		return // A plan follows.
	}
	plugin, err := d.plugins.FindCapacityPluginByName(d.plugin)
	if err != nil {
		d.lookAgain(item{pair: p}, failures{}) // It is on another machine, or was removed, or comes later: its objects stay.
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
		d.tell(class, p, err)
	}
	if err == nil && s.failures.end() {
		d.options.Logger.Info("the capacity is known again", "driver", d.name, "class", p.class, "segment", p.segment)
	}
	d.lookAgain(item{pair: p}, s.failures)
}

// tell tells people that a capacity stays as it is.
func (d *driver) tell(class *storagev1.StorageClass, p pair, err error) {
	d.options.Logger.Warn("the capacity is not known and stays as it is", "driver", d.name, "class", p.class, "segment", p.segment, "error", err)
	if d.options.Events != nil {
		d.options.Events.Eventf(class, v1.EventTypeWarning, EventCapacityFailed,
			"the capacity in segment %q is not known and stays as it is: %v", p.segment, err)
	}
}

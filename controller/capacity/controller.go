package capacity

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// The labels of an object, which are those of Kubernetes' external-provisioner.
const (
	// LabelManagedBy has the name of the controller: [Options].ManagedBy.
	LabelManagedBy = "csi.storage.k8s.io/managed-by"
	// LabelDriverName has the name of the driver.
	LabelDriverName = "csi.storage.k8s.io/drivername"
)

// EventCapacityFailed is the reason of the event of a class whose capacity a plugin could not say, or that could not be written.
const EventCapacityFailed = "CapacityFailed"

// The defaults of Options.
const (
	defaultManagedBy    = "volumekit"
	defaultPollInterval = time.Minute
	defaultCallTimeout  = time.Minute
)

// Options are the options of a [Controller].
type Options struct {
	// Namespace is where the objects are. Required.
	Namespace string
	// ManagedBy is the name of this controller, a label value. Controllers of one store that run at the same time, such as one for
	// each node, need names of their own. Empty means "volumekit".
	ManagedBy string
	// Owner becomes an owner of each object, so that a garbage collector deletes them with it; nil means none.
	Owner *metav1.OwnerReference
	// Segments are the segments of plugins, by the plugins' names: the labels that the nodes of a segment have. A plugin that is not
	// named has those of its CSINodes.
	Segments map[string][]map[string]string
	// ImmediateBinding publishes capacity for classes that bind at once, too.
	ImmediateBinding bool
	// PollInterval is the time after which a plugin is asked again although nothing has changed here; zero means a minute, less than
	// zero never.
	PollInterval time.Duration
	// CallTimeout bounds each call of a plugin; zero means a minute.
	CallTimeout time.Duration
	// InitialBackoff is the wait before what failed is tried again; it doubles with each failure in a row, up to MaxBackoff.
	// Zero means half a second, and two minutes and two seconds.
	InitialBackoff, MaxBackoff time.Duration
	// Jitter is the greatest part of a wait that is left out at random, between 0 and 1; zero means 0.1, less than zero none.
	Jitter float64
	// Events gets the events of classes; nil drops them.
	Events volume.EventRecorder
	// Logger gets failures and their ends; nil discards them.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.ManagedBy == "" {
		o.ManagedBy = defaultManagedBy
	}
	if o.PollInterval == 0 {
		o.PollInterval = defaultPollInterval
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = defaultCallTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) policy() backoff.Policy {
	return backoff.Policy{Initial: o.InitialBackoff, Max: o.MaxBackoff, Jitter: o.Jitter}
}

// Controller keeps the objects. Make it with [New] and start it with Run.
type Controller struct {
	plugins *volume.VolumePluginMgr
	store   store.Store
	options Options
	started atomic.Bool

	classes  *store.Mirror[*storagev1.StorageClass]
	nodes    *store.Mirror[*v1.Node]
	csiNodes *store.Mirror[*storagev1.CSINode]
	volumes  *store.Mirror[*v1.PersistentVolume]
	objects  *store.Mirror[*storagev1.CSIStorageCapacity]
	// ours are the objects of this controller, by driver.
	ours *store.Index[*storagev1.CSIStorageCapacity, string]

	// sizes are the sizes of volumes as they were seen last. Only the feed of volumes uses it.
	sizes map[string]volumeSize

	mu      sync.Mutex // no call that waits is made under it
	drivers map[string]*driver
	// starting are the plugins whose drivers Run is to start.
	starting *workqueue.Queue[string]
}

// volumeSize is what of a volume matters for capacity.
type volumeSize struct {
	uid   types.UID
	bytes int64
}

// New returns a controller for the classes in s that are served by plugins. It starts nothing and does no I/O. Without plugins, a
// store or a namespace the error matches [volume.ErrInvalid].
func New(plugins *volume.VolumePluginMgr, s store.Store, options Options) (*Controller, error) {
	if plugins == nil || s == nil || options.Namespace == "" {
		return nil, fmt.Errorf("capacity controller: give New plugins, a store and Options.Namespace: %w", volume.ErrInvalid)
	}
	options = options.withDefaults()
	mirrors := store.MirrorOptions{
		Logger: options.Logger, InitialBackoff: options.InitialBackoff, MaxBackoff: options.MaxBackoff, Jitter: options.Jitter,
	}
	c := &Controller{
		plugins: plugins, store: s, options: options,
		classes:  store.NewMirror[*storagev1.StorageClass](s, mirrors),
		nodes:    store.NewMirror[*v1.Node](s, mirrors),
		csiNodes: store.NewMirror[*storagev1.CSINode](s, mirrors),
		volumes:  store.NewMirror[*v1.PersistentVolume](s, mirrors),
		objects:  store.NewMirror[*storagev1.CSIStorageCapacity](s, mirrors),
		sizes:    map[string]volumeSize{},
		drivers:  map[string]*driver{},
		starting: workqueue.New[string](),
	}
	c.ours = store.NewIndex(c.objects, c.driversOf)
	return c, nil
}

// Run works until ctx ends, and returns when every goroutine that it started has ended, but for calls of plugins that do not return:
// those are abandoned. A second call returns at once with an error that matches [volume.ErrInvalid].
func (c *Controller) Run(ctx context.Context) error {
	if c.started.Swap(true) {
		return fmt.Errorf("capacity controller: Run was called twice: make another controller: %w", volume.ErrInvalid)
	}
	var feeds, drivers sync.WaitGroup
	feeds.Go(func() { c.classes.Follow(ctx, c.classChanged) })
	feeds.Go(func() { c.nodes.Follow(ctx, func(*v1.Node) { c.planAll() }) })
	feeds.Go(func() { c.csiNodes.Follow(ctx, func(*storagev1.CSINode) { c.planAll() }) })
	feeds.Go(func() { c.volumes.Follow(ctx, c.volumeChanged) })
	feeds.Go(func() { c.objects.Follow(ctx, c.objectChanged) })
	if c.synced(ctx) {
		c.startAll(ctx, &drivers)
	}
	feeds.Wait()
	drivers.Wait()
	for _, d := range c.all() {
		d.queue.Stop()
	}
	c.starting.Stop()
	return nil
}

// startAll starts drivers as they come, until ctx ends.
func (c *Controller) startAll(ctx context.Context, drivers *sync.WaitGroup) {
	for {
		plugin, ok := c.starting.Get(ctx)
		if !ok {
			return
		}
		drivers.Go(func() { c.known(plugin).run(ctx) })
	}
}

func (c *Controller) synced(ctx context.Context) bool {
	return c.classes.WaitSynced(ctx) && c.nodes.WaitSynced(ctx) && c.csiNodes.WaitSynced(ctx) && c.objects.WaitSynced(ctx)
}

// driver returns what keeps the objects of a plugin, and has it started if it is new.
func (c *Controller) driver(plugin string) *driver {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.drivers[plugin]
	if d == nil {
		d = newDriver(c, plugin)
		c.drivers[plugin] = d
		c.starting.Add(plugin)
	}
	return d
}

// known returns the driver of a plugin, nil if there is none yet.
func (c *Controller) known(plugin string) *driver {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drivers[plugin]
}

func (c *Controller) all() []*driver {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*driver, 0, len(c.drivers))
	for _, d := range c.drivers {
		all = append(all, d)
	}
	return all
}

func (c *Controller) planAll() {
	for _, d := range c.all() {
		d.plan()
	}
}

// classChanged plans a class anew, and asks for its capacity, since its parameters may be others.
func (c *Controller) classChanged(class *storagev1.StorageClass) {
	if class.Provisioner == "" || class.Provisioner == objects.NoProvisioner {
		return
	}
	d := c.driver(class.Provisioner)
	d.refreshClass(class.Name)
	d.plan()
}

// volumeChanged asks for capacity anew where a volume was made, grown or deleted.
func (c *Controller) volumeChanged(pv *v1.PersistentVolume) {
	now, exists := c.volumes.Get(store.NameOf(pv))
	if !exists {
		now = pv
	}
	before, known := c.sizes[pv.Name]
	size := volumeSize{uid: now.UID, bytes: now.Spec.Capacity.Storage().Value()}
	switch {
	case !exists && !known, exists && known && before == size:
		return
	case exists:
		c.sizes[pv.Name] = size
	default:
		delete(c.sizes, pv.Name)
	}
	if d := c.known(pluginOf(now)); d != nil {
		d.refreshNear(now)
	}
}

// pluginOf returns the plugin that made a volume or, if it was made by hand, the one of its driver.
func pluginOf(pv *v1.PersistentVolume) string {
	if by, ok := pv.Annotations[objects.AnnDynamicallyProvisioned]; ok {
		return by
	}
	driver, _ := volume.NewSpecFromPersistentVolume(pv, false).Driver()
	return driver.PluginName
}

// objectChanged has an object of this controller looked at that another has changed.
func (c *Controller) objectChanged(object *storagev1.CSIStorageCapacity) {
	for _, name := range c.driversOf(object) {
		c.driver(volume.PluginNameOfDriver(name)).objectChanged(object)
	}
}

// driversOf returns the name of the driver of an object, none if it is not of this controller.
func (c *Controller) driversOf(object *storagev1.CSIStorageCapacity) []string {
	driver := object.Labels[LabelDriverName]
	if object.Namespace != c.options.Namespace || object.Labels[LabelManagedBy] != c.options.ManagedBy || driver == "" {
		return nil
	}
	return []string{driver}
}

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

// EventCapacityFailed is the reason of the event of a class whose capacity could not be read from the plugin, or not be
// written.
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
	// Segments are the segments of plugins, by the plugins' names: the labels of the segment's nodes. Other plugins
	// have the segments of their CSINodes.
	Segments map[string][]map[string]string
	// ImmediateBinding publishes capacity for classes that bind at once, too.
	ImmediateBinding bool
	// PollInterval is the interval at which a plugin is called although nothing has changed; zero means a minute, a
	// negative value never.
	PollInterval time.Duration
	// CallTimeout bounds each call of a plugin; zero means a minute.
	CallTimeout time.Duration
	// InitialBackoff is the wait before a retry; it doubles with each failure in a row, up to MaxBackoff. Zero means
	// half a second, and two minutes and two seconds.
	InitialBackoff, MaxBackoff time.Duration
	// Jitter is the largest random part that is subtracted from a wait, between 0 and 1; zero means 0.1, a negative
	// value none.
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

// Controller maintains the objects. Make it with [New] and start it with Run.
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

	// sizes are the last known sizes of volumes. Only the feed of volumes uses it.
	sizes map[string]volumeSize

	mu      sync.Mutex // not held during I/O or calls of plugins
	drivers map[string]*driver
	// starting are the plugins whose drivers Run is to start.
	starting *workqueue.Queue[string]
}

// volumeSize holds the fields of a volume that matter for capacity.
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

// Run works until ctx ends, and returns when every goroutine that it started has ended, except for abandoned calls of
// plugins. A second call returns at once with an error that matches [volume.ErrInvalid].
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

// startAll starts new drivers until ctx ends.
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

// driver returns the driver that maintains the objects of a plugin, and starts a new one.
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

// classChanged plans a class again, and reads its capacity again, because its parameters may have changed.
func (c *Controller) classChanged(class *storagev1.StorageClass) {
	if class.Provisioner == "" || class.Provisioner == objects.NoProvisioner {
		return
	}
	d := c.driver(class.Provisioner)
	d.refreshClass(class.Name)
	d.plan()
}

// volumeChanged reads the capacity again if a volume was created, expanded or deleted.
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

// objectChanged queues an object of this controller that another program has changed.
func (c *Controller) objectChanged(object *storagev1.CSIStorageCapacity) {
	for _, name := range c.driversOf(object) {
		c.driver(volume.PluginNameOfDriver(name)).objectChanged(object)
	}
}

// driversOf returns the name of an object's driver, none if the object is not this controller's.
func (c *Controller) driversOf(object *storagev1.CSIStorageCapacity) []string {
	driver := object.Labels[LabelDriverName]
	if object.Namespace != c.options.Namespace || object.Labels[LabelManagedBy] != c.options.ManagedBy || driver == "" {
		return nil
	}
	return []string{driver}
}

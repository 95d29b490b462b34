package volume

import (
	"context"
	"errors"
	"fmt"
)

// DynamicPluginProber tells of plugins that come and go while the program runs. Whoever owns a registry, such as a volume
// manager, calls [VolumePluginMgr.Probe] again and again.
type DynamicPluginProber interface {
	// Probe waits until plugins have come, changed or gone since its last call, and says which; the first call says which
	// there are. It is called by one goroutine at a time, never under a lock, and must return soon after ctx has ended. What
	// it returns beside an error counts.
	Probe(ctx context.Context) ([]ProbeEvent, error)
}

// ProbeOperation is what has become of a plugin.
type ProbeOperation uint8

// What may become of a plugin.
const (
	// ProbeAddOrUpdate: it is there, and takes the place of the one of its name that was probed before, if any.
	ProbeAddOrUpdate ProbeOperation = iota
	// ProbeRemove: it is gone.
	ProbeRemove
)

// ProbeEvent says what has become of one plugin.
type ProbeEvent struct {
	// Op is what has become of it.
	Op ProbeOperation
	// Plugin is the plugin that is there now; nil for one that is gone.
	Plugin VolumePlugin
	// PluginName is the name of the plugin that is gone; it need not be set where Plugin is.
	PluginName string
}

// Probe waits for prober to tell of changes, and makes them. It returns the names of the plugins that were added, replaced
// or removed, in the order of the events. Each added one is initialised first, outside of all locks; one that is refused
// leaves the one before it in its place. Plugins that InitPlugins has registered are neither replaced nor removed: that is
// an error that matches [ErrInvalid]. Errors are joined, and leave the other events as they are. Calls of a
// plugin that are under way when the plugin is removed continue.
func (m *VolumePluginMgr) Probe(ctx context.Context, prober DynamicPluginProber) (changed []string, err error) {
	var events []ProbeEvent
	if p := guard(fmt.Sprintf("%T", prober), "Probe", func() { events, err = prober.Probe(ctx) }); p != nil {
		err = p
	}
	errs := []error{err}
	for _, event := range events {
		name, err := m.apply(ctx, event)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		changed = append(changed, name)
	}
	return changed, errors.Join(errs...)
}

func (m *VolumePluginMgr) apply(ctx context.Context, event ProbeEvent) (string, error) {
	switch {
	case event.Op == ProbeRemove:
		return event.PluginName, m.removeProbed(event.PluginName)
	case event.Op != ProbeAddOrUpdate:
		return "", fmt.Errorf("probed plugin %q has the unknown operation %d: %w", event.PluginName, event.Op, ErrInvalid)
	case event.Plugin == nil:
		return "", fmt.Errorf("probed plugin %q is nil: %w", event.PluginName, ErrInvalid)
	}
	return m.addProbed(ctx, event.Plugin)
}

func (m *VolumePluginMgr) addProbed(ctx context.Context, plugin VolumePlugin) (string, error) {
	if m.host == nil {
		return "", fmt.Errorf("volume plugins need a host: give NewVolumePluginMgr one: %w", ErrInvalid)
	}
	name, err := nameOf(plugin)
	if err != nil {
		return "", err
	}
	if err := m.reserveProbed(name, plugin); err != nil {
		return name, err
	}
	entry, err := initialised(ctx, name, plugin, m.host)
	if entry != nil {
		entry.probed = true
	}
	m.publish(name, entry)
	return name, err
}

// reserveProbed keeps name for plugin until publish, unless it is that of a plugin that was not probed.
func (m *VolumePluginMgr) reserveProbed(name string, plugin VolumePlugin) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	holder := m.reserved[name]
	if entry := m.plugins.Load().byName[name]; entry != nil && !entry.probed {
		holder = entry.plugin
	}
	if holder != nil {
		return registeredTwice(name, plugin, holder)
	}
	m.reserved[name] = plugin
	return nil
}

// removeProbed takes a plugin out of the registry. One that is not there is no error.
func (m *VolumePluginMgr) removeProbed(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.plugins.Load()
	entry := old.byName[name]
	switch {
	case entry == nil:
		return nil
	case !entry.probed:
		return fmt.Errorf("volume plugin %q (%T) was not probed, and is not removed: %w", name, entry.plugin, ErrInvalid)
	}
	next := old.clone()
	delete(next.byName, name)
	next.index()
	m.plugins.Store(next)
	return nil
}

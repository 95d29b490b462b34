package volume

import (
	"context"
	"errors"
	"fmt"
)

// DynamicPluginProber reports plugins that come and go while the program runs. The owner of a registry, such as a volume
// manager, calls [VolumePluginMgr.Probe] repeatedly.
type DynamicPluginProber interface {
	// Probe waits until plugins have come, changed or gone since its last call, and returns these events. The first call
	// returns the existing plugins. It is called by one goroutine at a time, with no lock held, and must return soon after
	// ctx has ended. Events that it returns together with an error count.
	Probe(ctx context.Context) ([]ProbeEvent, error)
}

// ProbeOperation is what happened to a plugin.
type ProbeOperation uint8

// The operations of a ProbeEvent.
const (
	// ProbeAddOrUpdate says that the plugin exists. It replaces a plugin of the same name that was probed before.
	ProbeAddOrUpdate ProbeOperation = iota
	// ProbeRemove says that the plugin is gone.
	ProbeRemove
)

// ProbeEvent is a change of one plugin.
type ProbeEvent struct {
	// Op is what happened.
	Op ProbeOperation
	// Plugin is the new plugin; nil for a removed one.
	Plugin VolumePlugin
	// PluginName is the name of a removed plugin. It may be empty if Plugin is set.
	PluginName string
}

// Probe waits for events of prober and applies them. It returns the names of the plugins that were added, replaced or
// removed, in the order of the events. It initialises each added plugin first, outside of all locks. If the registry
// refuses a plugin, the earlier plugin of that name stays. A plugin that InitPlugins registered is neither replaced nor
// removed; the error matches [ErrInvalid]. An error for one event does not stop the others, and errors are joined. Running
// calls of a removed plugin continue.
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

// reserveProbed reserves name for plugin until publish. It refuses the name of a plugin that was not probed, and a name
// that is reserved already.
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

// removeProbed removes a plugin from the registry. A missing plugin is no error.
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

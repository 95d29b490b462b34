package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/validation"
)

// VolumePluginMgr is the registry of plugins: it knows each by its name, what each can do, and which one serves a spec.
// It is an ordinary value made by [NewVolumePluginMgr]; two of them in one process never meet.
//
// All methods may be called from several goroutines at once. A look-up takes no lock: it reads the set of plugins as it
// was when the look-up began. What a plugin can do and which kinds of spec it serves is resolved once, at registration:
// see [CapabilitiesOf] and [SpecKindDeclarer]. No lock is held while a plugin is asked something, so that a plugin that
// does not answer holds up only those who asked it.
type VolumePluginMgr struct {
	host    VolumeHost
	plugins atomic.Pointer[pluginSet]

	// mu guards reserved and the replacement of plugins. It is never held while plugin code runs.
	mu sync.Mutex
	// reserved holds the plugins whose Init is running. A second plugin of such a name is refused.
	reserved map[string]VolumePlugin
}

// pluginSet is immutable.
type pluginSet struct {
	byName map[string]*registered
	sorted []*registered // by name
	kinds  *kindIndex
}

// registered is one plugin as it was at registration. It is immutable.
type registered struct {
	name         string
	plugin       VolumePlugin
	capabilities Capabilities
	// kinds are those that the plugin declares; empty means that it is asked about every spec.
	kinds []SpecKind
	// publicKeys are those of a PublicKeyDeclarer.
	publicKeys []string
	// probed says that a prober told of it.
	probed bool
}

// NewVolumePluginMgr returns an empty registry whose plugins are initialised with host. It starts nothing.
func NewVolumePluginMgr(host VolumeHost) *VolumePluginMgr {
	m := &VolumePluginMgr{host: host, reserved: map[string]VolumePlugin{}}
	m.plugins.Store(&pluginSet{kinds: newKindIndex(nil)})
	return m
}

// InitPlugins initialises plugins one after the other, with ctx, and registers each that succeeds. It may be called
// again to add more.
//
// It returns every failure, joined; the good plugins stay registered all the same, so that a caller may go on with
// them. A plugin is refused, with an error that matches [ErrInvalid], when its name is not a DNS-1123 subdomain, one
// slash and a qualified name, when it declares a kind of spec that does not exist, or when another plugin of that name is
// registered: the error then names the types of both. A plugin whose Init fails, panics, or does not start because ctx has ended is not registered and may be tried
// again.
func (m *VolumePluginMgr) InitPlugins(ctx context.Context, plugins ...VolumePlugin) error {
	if m.host == nil {
		return fmt.Errorf("volume plugins need a host: give NewVolumePluginMgr one: %w", ErrInvalid)
	}
	var errs []error
	for _, plugin := range plugins {
		errs = append(errs, m.initPlugin(ctx, plugin))
	}
	return errors.Join(errs...)
}

func (m *VolumePluginMgr) initPlugin(ctx context.Context, plugin VolumePlugin) error {
	if plugin == nil {
		return fmt.Errorf("volume plugin is nil: %w", ErrInvalid)
	}
	name, err := nameOf(plugin)
	if err != nil {
		return err
	}
	if err := m.reserve(name, plugin); err != nil {
		return err
	}
	entry, err := initialised(ctx, name, plugin, m.host)
	m.publish(name, entry)
	return err
}

// nameOf returns the name of plugin, checked.
func nameOf(plugin VolumePlugin) (name string, err error) {
	if err := guard(fmt.Sprintf("%T", plugin), "GetPluginName", func() { name = plugin.GetPluginName() }); err != nil {
		return "", err
	}
	if err := ValidatePluginName(name); err != nil {
		return "", fmt.Errorf("volume plugin %T: %w", plugin, err)
	}
	return name, nil
}

// initialised calls Init and resolves what the plugin can do and serves.
func initialised(ctx context.Context, name string, plugin VolumePlugin, host VolumeHost) (*registered, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("volume plugin %q (%T) was not initialised: %w", name, plugin, err)
	}
	var err error
	if p := guard(name, "Init", func() { err = plugin.Init(ctx, host) }); p != nil {
		return nil, p
	}
	if err != nil {
		return nil, fmt.Errorf("volume plugin %q (%T) could not be initialised: %w", name, plugin, err)
	}
	entry := &registered{name: name, plugin: plugin}
	if p := guard(name, "Capabilities", func() { entry.capabilities = CapabilitiesOf(plugin) }); p != nil {
		return nil, p
	}
	if p := guard(name, "SpecKinds", func() { entry.kinds, err = declaredKinds(plugin) }); p != nil {
		return nil, p
	}
	if err != nil {
		return nil, fmt.Errorf("volume plugin %q (%T): %w", name, plugin, err)
	}
	if p := guard(name, "PublicKeys", func() { entry.publicKeys = publicKeysOf(plugin) }); p != nil {
		return nil, p
	}
	return entry, nil
}

// reserve keeps name for plugin until publish.
func (m *VolumePluginMgr) reserve(name string, plugin VolumePlugin) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	holder := m.reserved[name]
	if entry := m.plugins.Load().byName[name]; entry != nil {
		holder = entry.plugin
	}
	if holder != nil {
		return registeredTwice(name, plugin, holder)
	}
	m.reserved[name] = plugin
	return nil
}

func registeredTwice(name string, plugin, holder VolumePlugin) error {
	return fmt.Errorf("volume plugin %q is registered twice: %T is refused because %T has that name: %w", name, plugin, holder, ErrInvalid)
}

// publish ends the reservation of name and, unless entry is nil, makes entry visible to look-ups.
func (m *VolumePluginMgr) publish(name string, entry *registered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.reserved, name)
	if entry == nil {
		return
	}
	next := m.plugins.Load().clone()
	next.byName[name] = entry
	next.index()
	m.plugins.Store(next)
}

// clone returns a copy that may be changed, until it is published; index comes last.
func (s *pluginSet) clone() *pluginSet {
	next := &pluginSet{byName: make(map[string]*registered, len(s.byName)+1)}
	maps.Copy(next.byName, s.byName)
	return next
}

func (s *pluginSet) index() {
	s.sorted = slices.SortedFunc(maps.Values(s.byName), func(a, b *registered) int {
		return strings.Compare(a.name, b.name)
	})
	s.kinds = newKindIndex(s.sorted)
}

// Host returns the host that the plugins were initialised with.
func (m *VolumePluginMgr) Host() VolumeHost { return m.host }

// Capabilities returns what the plugin of that name can do, as resolved at registration; the empty set when there is no
// such plugin.
func (m *VolumePluginMgr) Capabilities(pluginName string) Capabilities {
	if entry := m.plugins.Load().byName[pluginName]; entry != nil {
		return entry.capabilities
	}
	return 0
}

// PluginNames returns the names of the registered plugins, sorted.
func (m *VolumePluginMgr) PluginNames() []string { return m.plugins.Load().names() }

func (s *pluginSet) names() []string {
	names := make([]string, 0, len(s.sorted))
	for _, entry := range s.sorted {
		names = append(names, entry.name)
	}
	return names
}

// ValidatePluginName reports whether name can be a plugin's: a DNS-1123 subdomain, exactly one slash, and the name part
// of a Kubernetes qualified name ("example.com/ram"). Kubernetes also lets a name without a slash pass, which its own
// paths and unique names cannot hold. The error matches [ErrInvalid].
func ValidatePluginName(name string) error {
	domain, base, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(base, "/") {
		return fmt.Errorf("plugin name %q must be a domain, exactly one slash and a name, such as \"example.com/ram\": %w",
			name, ErrInvalid)
	}
	why := validation.IsDNS1123Subdomain(domain)
	if base == "" {
		why = append(why, "the part after the slash is empty")
	} else {
		why = append(why, validation.IsQualifiedName(base)...)
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("plugin name %q: %s: %w", name, strings.Join(why, "; "), ErrInvalid)
}

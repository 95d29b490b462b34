package volumetest

import (
	"runtime/debug"
	"runtime/pprof"
	"testing"

	"github.com/volumekit/volumekit/volume"
)

// Case is one case of the suite. Its rule is in docs/contract.md under the same number and in the same words.
type Case struct {
	// Rule is the number of the rule, such as "M3"; it is also the number of the case.
	Rule string
	// Group is what the case is about, such as "mount".
	Group string
	// Name says what is tried, in a few words.
	Name string
	// Sentence is the rule.
	Sentence string
	// Needs are the capabilities without which the case does not concern a plugin.
	Needs volume.Capabilities

	run func(e *env)
}

// String returns the group, the number and the name, as the subtest is called.
func (c Case) String() string { return c.Group + "/" + c.Rule + " " + c.Name }

// Run runs the case against the plugin of config. It fails t with the rule's number and sentence when the rule is
// broken, and skips when the case does not concern the plugin.
func (c Case) Run(t testing.TB, config Config) {
	t.Helper()
	defer func() {
		if value := recover(); value != nil {
			t.Errorf("the plugin panicked: %v\n%s\nrule %s is broken: %s", value, debug.Stack(), c.Rule, c.Sentence)
		}
	}()
	id, before := nextID(), descriptors()
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels(leakLabel, id)))
	defer pprof.SetGoroutineLabels(t.Context())
	e := newEnv(t, c, config)
	e.id = id
	defer e.expectNoLeaks(before)
	defer e.cleanUp()
	c.run(e)
}

// Run runs every case against the plugin of config, each as a subtest of t named by its group, number and name, one
// after the other. It must not run beside tests that are parallel, whose descriptors it would take for the plugin's. A group
// for which the plugin has no capability is skipped as a whole.
func Run(t *testing.T, config Config) {
	t.Helper()
	capabilities := checkRequired(t, config)
	for _, group := range groups() {
		t.Run(group[0].Group, func(t *testing.T) { runGroup(t, config, group, capabilities) })
	}
}

func runGroup(t *testing.T, config Config, group []Case, capabilities volume.Capabilities) {
	var missing volume.Capabilities
	concerned := false
	for _, c := range group {
		lacks := c.Needs &^ capabilities
		missing |= lacks
		if lacks != 0 {
			continue
		}
		concerned = true
		t.Run(c.Rule+" "+c.Name, func(t *testing.T) { c.Run(t, config) })
	}
	if !concerned {
		t.Skipf("the plugin does not have %v, and Config.Require does not list it", missing)
	}
}

// checkRequired returns what the plugin can do and fails where a capability that must be there is absent.
func checkRequired(t testing.TB, config Config) volume.Capabilities {
	t.Helper()
	e := newEnv(t, Case{}, config)
	if missing := config.Require &^ e.capabilities; missing != 0 {
		t.Errorf("Config.Require lists %v, which plugin %q does not have: it has %v",
			missing, e.plugin.GetPluginName(), e.capabilities)
	}
	for _, wrong := range wrongSignatures(e.plugin) {
		t.Errorf("plugin %q: %s", e.plugin.GetPluginName(), wrong)
	}
	return e.capabilities
}

// Cases returns every case, in the order in which Run runs them; a copy.
func Cases() []Case {
	var all []Case
	for _, group := range groups() {
		all = append(all, group...)
	}
	return all
}

// groups are the cases of each group, which are all of the same group.
func groups() [][]Case {
	return [][]Case{
		identityCases(), mountCases(), unmountCases(), readOnlyCases(), ownershipCases(), secretCases(),
		attachCases(), stageCases(), blockCases(),
		provisionCases(), expandCases(), modifyCases(), deleteCases(), recycleCases(), snapshotCases(), capacityCases(),
		metricsCases(), reconstructCases(), contextCases(), leakCases(),
	}
}

package volumetest

import (
	"context"
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
	id := nextID()
	labels := pprof.Labels(leakLabel, id)
	pprof.Do(t.Context(), labels, func(ctx context.Context) {
		e := newEnv(ctx, t, c, config)
		defer e.cleanUp()
		e.id = id
		c.run(e)
	})
}

// Run runs every case against the plugin of config, each as a subtest of t named by its group, number and name, one
// after the other.
func Run(t *testing.T, config Config) {
	t.Helper()
	t.Run("require", func(t *testing.T) { checkRequired(t, config) })
	for _, c := range Cases() {
		t.Run(c.String(), func(t *testing.T) { c.Run(t, config) })
	}
}

// checkRequired fails where a capability that must be there is absent.
func checkRequired(t testing.TB, config Config) {
	t.Helper()
	e := newEnv(t.Context(), t, Case{}, config)
	if missing := config.Require &^ e.capabilities; missing != 0 {
		t.Errorf("Config.Require lists %v, which plugin %q does not have: it has %v",
			missing, e.plugin.GetPluginName(), e.capabilities)
	}
}

// Cases returns every case, in the order in which Run runs them; a copy.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{
		identityCases(), mountCases(), unmountCases(), readOnlyCases(), attachCases(), stageCases(),
		provisionCases(), metricsCases(), reconstructCases(), leakCases(),
	} {
		all = append(all, group...)
	}
	return all
}

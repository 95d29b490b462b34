package simulationtest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/volumemanager/internal/world"
)

// found are the shortest steps to what was found once, so that it stays found whatever becomes of the seeds. Those that
// only a program with a planted bug stumbles over show that the program without it is right.
var found = map[string]struct {
	volumes []world.Volume
	steps   string
	bug     bug
	rule    string
}{
	"an attach that was never called leaves no record": {
		volumes: []world.Volume{{Name: "v1", Attachable: true, Mode: "ReadWriteOnce"}},
		steps:   "add p1\nkick n1\ncancel n1\nremove p1",
	},
	"a verification takes what is gone off the record": {
		volumes: []world.Volume{{Name: "v1", Attachable: true, Mode: "ReadWriteOnce"}},
		steps:   "add p1\nkick n1\nremove p1\nrelease Intend:n1:v1 ok\ncrash n1\nverify n1\nrelease VolumesAreAttached:n1 ok",
	},
	"an update during the first set-up": {
		volumes: []world.Volume{{Name: "v1", Remountable: true, Mode: "ReadWriteOnce"}},
		steps:   "add p1\nkick n1\nrelease Intend:n1:v1:p1 ok\nupdate p1",
	},
	"a mapping may be left although the plugin failed for good": {
		volumes: []world.Volume{{Name: "v1", Attachable: true, Stageable: true, Block: true, Mode: "ReadWriteOnce"}},
		steps: "add p1\nkick n1\nrelease Intend:n1:v1 ok\nrelease Attach:n1:v1 ok\nrelease Conclude:n1:v1 ok\nkick n1\n" +
			"release Intend:n1:v1 ok\nrelease WaitForAttach:n1:v1 ok\nrelease Intend:n1:v1 ok\nrelease SetUpDevice:n1:v1 ok\nrelease Conclude:n1:v1 ok\n" +
			"release Intend:n1:v1:p1 ok\nrelease MapPodDevice:n1:v1:p1 ok\nrelease MapDevice:n1:v1:p1 uncertain-after\nrelease Conclude:n1:v1:p1 ok\n" +
			"sleep 25s\nkick n1\nrelease WaitForAttach:n1:v1 ok\nrelease Intend:n1:v1:p1 ok\nrelease MapPodDevice:n1:v1:p1 final",
	},
	"an update during the first set-up, not noticed": {
		volumes: []world.Volume{{Name: "v1", Remountable: true, Mode: "ReadWriteOnce"}},
		steps:   "add p1\nkick n1\nrelease Intend:n1:v1:p1 ok\nupdate p1",
		bug:     bug{ignoresUpdates: true}, rule: "L1",
	},
}

func TestWhatWasFoundStaysFound(t *testing.T) {
	for name, test := range found {
		t.Run(name, func(t *testing.T) {
			s := scenario{bug: test.bug, config: world.Config{Nodes: []string{"n1"}, Volumes: test.volumes}}
			p := world.Pod{Name: "p1", Node: "n1"}
			for _, v := range test.volumes {
				p.Volumes = append(p.Volumes, v.Name)
			}
			s.config.Pods = []world.Pod{p}
			steps, err := simulation.ParseSteps(test.steps)
			require.NoError(t, err)
			r := s.of().Replay(t, steps)
			assert.Equal(t, steps, r.Steps, "no step may be skipped")
			assert.Equal(t, test.rule, r.Rule(), "%v", r.Err)
		})
	}
}

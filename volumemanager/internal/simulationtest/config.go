package simulationtest

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/volumekit/volumekit/volumemanager/internal/world"
)

// Verdicts are the possible verdicts on calls of the plugin, besides world.OK.
var Verdicts = []string{
	world.Transient, world.Final, world.FinalAfter, world.Unsure, world.UnsureAfter, world.Panic, world.PanicAfter, world.Goexit,
	world.GoexitAfter, world.Cancelled, world.CancelledAfter, world.LoseAnswer, world.NilError, world.Lie, world.TransientAfter,
	world.Half,
}

// kinds are the kinds of volume.
var kinds = []world.Volume{
	{},
	{Stageable: true},
	{Attachable: true},
	{Attachable: true, Stageable: true},
	{Remountable: true},
	{Stageable: true, Remountable: true},
	{Block: true, Attachable: true},
	{Block: true, Stageable: true},
	{Block: true, Attachable: true, Stageable: true},
}

var modes = []string{"ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"}

// RandomConfig returns a small world in which some things may go wrong.
func RandomConfig(random *rand.Rand) world.Config {
	c := world.Config{Nodes: []string{"n1"}, Often: map[string]int{}, Faults: world.Faults{
		Verdicts: someOf(random, Verdicts), Often: 3 + random.IntN(16), Journal: random.IntN(3) == 0, Foreign: random.IntN(3) == 0, Quiet: random.IntN(2) == 0, Verifies: random.IntN(2) == 0, BreaksContract: random.IntN(3) == 0,
		Crashes: random.IntN(3) > 0, Reboots: random.IntN(3) == 0, Cancels: random.IntN(3) == 0,
		Sleeps: []time.Duration{time.Second, 25 * time.Second, 5 * time.Minute},
	}}
	kinds := kinds
	if random.IntN(3) == 0 {
		c.WithController, c.Nodes, kinds = true, []string{"n1", "n2"}, kinds[1:4]
	}
	c.Eager = random.IntN(3) == 0
	for i := range 1 + random.IntN(3)*random.IntN(2) {
		v := kinds[random.IntN(len(kinds))]
		v.Name, v.Mode = "v"+strconv.Itoa(i+1), modes[random.IntN(len(modes))]
		c.Volumes = append(c.Volumes, v)
	}
	for i := range 1 + random.IntN(3) {
		p := world.Pod{Name: "p" + strconv.Itoa(i+1), Node: c.Nodes[random.IntN(len(c.Nodes))]}
		for _, v := range c.Volumes {
			if random.IntN(4) > 0 {
				p.Volumes = append(p.Volumes, v.Name)
			}
		}
		c.Pods = append(c.Pods, p)
	}
	for _, verb := range []string{"add", "remove", "update", "crash", "sleep"} {
		if random.IntN(3) == 0 {
			c.Often[verb] = 3
		}
	}
	if random.IntN(2) == 0 {
		slow := []string{"Attach", "Detach", "MountDevice", "UnmountDevice", "SetUp", "TearDown"}
		if c.WithController {
			slow = []string{"Detach", "Detach", "WriteStatus", "Attach"}
		}
		c.Faults.Slow = slow[random.IntN(len(slow))]
	}
	switch random.IntN(3) {
	case 0:
		c.Sick = c.Volumes[random.IntN(len(c.Volumes))].Name
	case 1:
		c.Broken = c.Pods[random.IntN(len(c.Pods))].Name
	}
	return c
}

// someOf returns a few verdicts. A world with few kinds of faults that occur often reaches deeper states.
func someOf(random *rand.Rand, verdicts []string) []string {
	return slices.DeleteFunc(slices.Clone(verdicts), func(string) bool { return random.IntN(3) > 0 })
}

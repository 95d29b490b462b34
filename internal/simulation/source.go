package simulation

import "math/rand/v2"

// Source chooses.
type Source interface {
	// Next returns one of the steps of choices, or any other one, and false when there is to be no more.
	Next(choices []Choice) (Step, bool)
}

// Random chooses by chance. Make it with [NewRandom].
type Random struct {
	random *rand.Rand
	left   int
}

// NewRandom returns a source of at most steps steps, which random chooses by their weights.
func NewRandom(random *rand.Rand, steps int) *Random { return &Random{random: random, left: steps} }

// Next implements [Source].
func (r *Random) Next(choices []Choice) (Step, bool) {
	sum := 0
	for _, c := range choices {
		sum += c.Weight
	}
	if r.left == 0 || sum == 0 {
		return Step{}, false
	}
	r.left--
	at := r.random.IntN(sum)
	for _, c := range choices {
		if at < c.Weight {
			return c.Step, true
		}
		at -= c.Weight
	}
	return Step{}, false
}

// Script is a list of steps, taken in order. Make it with [NewScript].
type Script struct{ left []Step }

// NewScript returns a source of these steps.
func NewScript(steps []Step) *Script { return &Script{left: steps} }

// Next implements [Source].
func (s *Script) Next([]Choice) (Step, bool) {
	if len(s.left) == 0 {
		return Step{}, false
	}
	step := s.left[0]
	s.left = s.left[1:]
	return step, true
}

// Chain is one source after the other.
type Chain []Source

// Next implements [Source].
func (c *Chain) Next(choices []Choice) (Step, bool) {
	for len(*c) > 0 {
		if step, ok := (*c)[0].Next(choices); ok {
			return step, true
		}
		*c = (*c)[1:]
	}
	return Step{}, false
}

package simulation

import "slices"

// Shrink returns a part of steps that still fails and of which no single step can be left out, nor be made plainer.
// fails runs a new world by the steps and reports whether the same thing fails as did before. plain returns a plainer
// form of a step, or the step itself; nil means there is none. fails is called at most tries times.
func Shrink(steps []Step, tries int, plain func(Step) Step, fails func([]Step) bool) []Step {
	s := shrinking{steps: slices.Clone(steps), tries: tries, fails: fails}
	for changed := true; changed && s.tries > 0; {
		changed = s.remove()
		if plain != nil {
			changed = s.replace(plain) || changed
		}
	}
	return s.steps
}

type shrinking struct {
	steps []Step
	tries int
	fails func([]Step) bool
}

// accept makes shorter the steps if it still fails.
func (s *shrinking) accept(shorter []Step) bool {
	if s.tries == 0 {
		return false
	}
	s.tries--
	if !s.fails(shorter) {
		return false
	}
	s.steps = shorter
	return true
}

// remove takes out ever smaller runs of steps, from the end on: what came last is needed least.
func (s *shrinking) remove() bool {
	changed := false
	for size := max(1, len(s.steps)/2); size > 0; size /= 2 {
		for end := len(s.steps); end > 0; end -= size {
			end = min(end, len(s.steps))
			shorter := slices.Delete(slices.Clone(s.steps), max(0, end-size), end)
			changed = s.accept(shorter) || changed
		}
	}
	return changed
}

func (s *shrinking) replace(plain func(Step) Step) bool {
	changed := false
	for i := range s.steps {
		plainer := plain(s.steps[i])
		if plainer == s.steps[i] {
			continue
		}
		simpler := slices.Clone(s.steps)
		simpler[i] = plainer
		changed = s.accept(simpler) || changed
	}
	return changed
}

package simulation

// Explore calls run once for each schedule of depth steps, with a source that selects the steps of the schedule. It returns the
// number of schedules. run must make a new world and drive it by the source. A world must offer the same choices after the same
// steps. Explore never selects a choice with weight zero. It ends early if run returns false.
func Explore(depth int, run func(source Source) bool) (schedules int) {
	path := &path{depth: depth}
	for {
		path.at = 0
		schedules++
		if !run(path) || !path.advance() {
			return schedules
		}
	}
}

// path selects the choices of taken, by index, and beyond its end the first choice.
type path struct {
	depth, at int
	taken     []int
	offered   []int
}

// Next implements [Source].
func (p *path) Next(choices []Choice) (Step, bool) {
	if p.at == p.depth {
		return Step{}, false
	}
	open := make([]Step, 0, len(choices))
	for _, c := range choices {
		if c.Weight > 0 {
			open = append(open, c.Step)
		}
	}
	if len(open) == 0 {
		return Step{}, false
	}
	if p.at == len(p.taken) {
		p.taken, p.offered = append(p.taken, 0), append(p.offered, 0)
	}
	p.offered[p.at] = len(open)
	step := open[min(p.taken[p.at], len(open)-1)]
	p.at++
	return step, true
}

// advance changes taken to the next schedule. It returns false if there is none.
func (p *path) advance() bool {
	p.taken, p.offered = p.taken[:p.at], p.offered[:p.at]
	for i := len(p.taken) - 1; i >= 0; i-- {
		if p.taken[i]+1 < p.offered[i] {
			p.taken[i]++
			p.taken, p.offered = p.taken[:i+1], p.offered[:i+1]
			return true
		}
	}
	return false
}

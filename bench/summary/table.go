package main

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// table has a row for each goal whose figures were measured, and says how many were not.
func table(all results) string {
	var b strings.Builder
	b.WriteString("| work | Kubernetes | ours | bare calls | ratio | goal | |\n|---|---|---|---|---|---|---|\n")
	missing := 0
	for _, g := range goals {
		row, ok := g.row(all)
		if !ok {
			missing++
			continue
		}
		b.WriteString(row)
	}
	if missing > 0 {
		fmt.Fprintf(&b, "\n%d of %d rows were not measured in this run.\n", missing, len(goals))
	}
	return b.String()
}

func (g goal) unit() string {
	if g.metric == "" {
		return "ns/op"
	}
	return g.metric
}

// values returns the results of one implementation in all rounds.
func (g goal) values(all results, impl string) []float64 {
	return all[g.bench+"/impl="+impl][g.unit()]
}

func (g goal) median(all results, impl string) string {
	v := g.values(all, impl)
	if len(v) == 0 {
		return ""
	}
	return quantity(g.unit(), spreadOf(v).median)
}

func (g goal) row(all results) (string, bool) {
	against := g.against
	if against == "" {
		against = "k8s"
	}
	mineImpl := cmp.Or(g.ours, "ours")
	ours := g.values(all, mineImpl)
	if len(ours) == 0 {
		return "", false
	}
	var ratio, wanted, verdict string
	mine := g.median(all, mineImpl)
	switch {
	case g.limited:
		worst := spreadOf(ours).greatest
		mine = quantity(g.unit(), worst)
		wanted, verdict = "at most "+quantity(g.unit(), g.most), met(worst <= g.most)
	case g.small != "":
		small := all[g.small+"/impl=ours"][g.unit()]
		ratio, wanted, verdict = g.scaling(ratios(ours, small))
		return fmt.Sprintf("| %s | | | | %s | %s | %s |\n", g.work, ratio, wanted, verdict), ratio != ""
	default:
		ratio, wanted, verdict = g.gain(ratios(g.values(all, against), ours))
	}
	theirs := g.median(all, against)
	if g.against != "" {
		theirs = g.against + ": " + theirs
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", g.work, theirs, mine,
		g.median(all, g.limit), ratio, wanted, verdict), true
}

// gain is met when the median is as good as wanted, and when no round was worse than half of that.
func (g goal) gain(rs []float64) (ratio, wanted, verdict string) {
	if len(rs) == 0 {
		return "", "", ""
	}
	s := spreadOf(rs)
	ratio = bracketed(s)
	if g.least == 0 {
		return ratio, "", ""
	}
	return ratio, "≥ " + number(g.least) + "×", met(s.median >= g.least && s.least >= g.least/2)
}

// scaling is met when the median of the bigger problem is at most flat times that of the smaller.
func (g goal) scaling(rs []float64) (ratio, wanted, verdict string) {
	if len(rs) == 0 {
		return "", "", ""
	}
	s := spreadOf(rs)
	if g.flat == 0 {
		return bracketed(s), "", ""
	}
	return bracketed(s), "≤ " + number(g.flat), met(s.median <= g.flat)
}

func met(ok bool) string {
	if ok {
		return "met"
	}
	return "**missed**"
}

func bracketed(s spread) string {
	return fmt.Sprintf("%s [%s–%s]", number(s.median), number(s.least), number(s.greatest))
}

// quantity writes a figure with its unit.
func quantity(unit string, v float64) string {
	what, _, _ := strings.Cut(unit, "/")
	switch {
	case what == "ns" || strings.HasSuffix(what, "-ns"):
		return scaled(v, 1000, "ns", "µs", "ms", "s")
	case what == "B" || strings.HasSuffix(what, "-B"):
		return scaled(v, 1000, "B", "kB", "MB", "GB")
	}
	return number(v)
}

func scaled(v, step float64, units ...string) string {
	i := 0
	for ; v >= step && i+1 < len(units); i++ {
		v /= step
	}
	return number(v) + " " + units[i]
}

// number writes three figures, and thousands with commas.
func number(v float64) string {
	switch {
	case math.IsInf(v, 0):
		return "∞"
	case v >= 1000:
		s := strconv.FormatFloat(v, 'f', 0, 64)
		for i := len(s) - 3; i > 0; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	case v >= 100 || v == float64(int(v)):
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

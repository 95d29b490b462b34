package main

import (
	"fmt"
	"slices"
	"strings"
)

// details is a table of every benchmark in one file, with all its metrics.
func details(name string, r results, order []string) string {
	var units []string
	for _, benchmark := range order {
		for unit := range r[benchmark] {
			if !slices.Contains(units, unit) {
				units = append(units, unit)
			}
		}
	}
	slices.Sort(units)
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n| benchmark | %s | k8s ÷ this |\n|---|%s---|\n", name, strings.Join(units, " | "),
		strings.Repeat("---|", len(units)))
	for _, benchmark := range order {
		fmt.Fprintf(&b, "| %s", benchmark)
		for _, unit := range units {
			fmt.Fprintf(&b, " | %s", cell(unit, r[benchmark][unit]))
		}
		fmt.Fprintf(&b, " | %s |\n", besideKubernetes(r, benchmark))
	}
	return b.String()
}

// cell is the median, with the least and the greatest as percentages of it.
func cell(unit string, v []float64) string {
	if len(v) == 0 {
		return ""
	}
	s := spreadOf(v)
	text := quantity(unit, s.median)
	if s.median != 0 && unit != "B/op" && unit != "allocs/op" {
		text += fmt.Sprintf(" (%+.0f/%+.0f%%)", 100*(s.least/s.median-1), 100*(s.greatest/s.median-1))
	}
	return text
}

func besideKubernetes(r results, benchmark string) string {
	group, impl, ok := strings.Cut(benchmark, "impl=")
	if !ok || impl == "k8s" || r[group+"impl=k8s"] == nil {
		return ""
	}
	rs := ratios(r[group+"impl=k8s"]["ns/op"], r[benchmark]["ns/op"])
	if len(rs) == 0 {
		return ""
	}
	return bracketed(spreadOf(rs))
}

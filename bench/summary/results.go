package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// results are the figures of each benchmark, by metric, in the order of the rounds.
type results map[string]map[string][]float64

// processors is what the testing package adds to the name of a benchmark.
var processors = regexp.MustCompile(`-\d+$`)

// read parses the output of benchmarks; order is that of their first appearance.
func read(path string) (r results, order []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	r = results{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
		if r[name] == nil {
			r[name], order = map[string][]float64{}, append(order, name)
		}
		if err := r.add(name, fields[2:]); err != nil {
			return nil, nil, fmt.Errorf("%s: %q: %w", path, lines.Text(), err)
		}
	}
	return r, order, lines.Err()
}

// add takes pairs of figure and metric.
func (r results) add(name string, fields []string) error {
	for i := 0; i+1 < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return err
		}
		r[name][fields[i+1]] = append(r[name][fields[i+1]], v)
	}
	return nil
}

// spread is the median of some figures, the least and the greatest.
type spread struct{ median, least, greatest float64 }

func spreadOf(v []float64) spread {
	s := slices.Sorted(slices.Values(v))
	return spread{s[len(s)/2], s[0], s[len(s)-1]}
}

// ratios divides round by round. It is empty when a round has only one of the two.
func ratios(over, under []float64) []float64 {
	if len(over) != len(under) {
		return nil
	}
	var rs []float64
	for i, v := range under {
		if v == 0 && over[i] == 0 {
			return nil // neither has any: there is nothing to compare
		}
		rs = append(rs, over[i]/v)
	}
	return rs
}

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// output is that of two rounds. Both sides are twice as slow in the second, so that the ratio is the same.
const output = `# group 7b round 1
goos: linux
BenchmarkMountTable/op=List-first/mounts=5000/impl=k8s-2 	 10	 20000000 ns/op	 9043000 B/op	 12121 allocs/op
BenchmarkMountTable/op=List-first/mounts=5000/impl=ours-2	 10	 10000000 ns/op	 1000 B/op	 19 allocs/op
BenchmarkMountTable/op=Lookup/mounts=10/impl=ours-2      	 10	 1000 ns/op	 0 B/op	 0 allocs/op
BenchmarkMountTable/op=Lookup/mounts=5000/impl=k8s-2     	 10	 20000000 ns/op	 0 B/op	 0 allocs/op
BenchmarkMountTable/op=Lookup/mounts=5000/impl=ours-2    	 10	 1200 ns/op	 0 B/op	 0 allocs/op
PASS
# group 7b round 2
BenchmarkMountTable/op=List-first/mounts=5000/impl=k8s-2 	 10	 40000000 ns/op	 9043000 B/op	 12121 allocs/op
BenchmarkMountTable/op=List-first/mounts=5000/impl=ours-2	 10	 20000000 ns/op	 1000 B/op	 21 allocs/op
BenchmarkMountTable/op=Lookup/mounts=10/impl=ours-2      	 10	 2000 ns/op	 0 B/op	 0 allocs/op
BenchmarkMountTable/op=Lookup/mounts=5000/impl=k8s-2     	 10	 2000000 ns/op	 0 B/op	 0 allocs/op
BenchmarkMountTable/op=Lookup/mounts=5000/impl=ours-2    	 10	 2000 ns/op	 0 B/op	 0 allocs/op
PASS
`

func parsed(t *testing.T) results {
	t.Helper()
	name := filepath.Join(t.TempDir(), "raw.txt")
	if err := os.WriteFile(name, []byte(output), 0o600); err != nil {
		t.Fatal(err)
	}
	r, order, err := read(name)
	if err != nil {
		t.Fatal(err)
	}
	if len(order) != 5 || !slices.Equal(r[order[0]]["ns/op"], []float64{2e7, 4e7}) {
		t.Fatalf("read %v, %v", order, r)
	}
	return r
}

func TestTableSaysWhichGoalsAreMet(t *testing.T) {
	text := table(parsed(t))
	for _, row := range []string{
		"| list 5,000 mounts, first time | 40 ms | 20 ms |  | 2 [2–2] | ≥ 1.4× | met |",
		// 19 allocations in one round, 21 in the other: a limit holds for each.
		"| the same, allocations | 12,121 | 21 |  |  | at most 20 | **missed** |",
		// 16,667 times in one round, 1,000 in the other: less than half of the goal.
		"| the same among 5,000 | 20 ms | 2 µs |  | 16,667 [1,000–16,667] | ≥ 3,000× | **missed** |",
		"| the same, time among 5,000 ÷ time among 10 | | | | 1.2 [1–1.2] | ≤ 1.3 | met |",
	} {
		if !strings.Contains(text, row+"\n") {
			t.Errorf("the table lacks %q:\n%s", row, text)
		}
	}
	if !strings.Contains(text, "rows were not measured") {
		t.Error("the table does not say that most of it is missing")
	}
}

func TestEveryGoalAsksForOneThing(t *testing.T) {
	for _, g := range goals {
		asked := 0
		for _, is := range []bool{g.least > 0, g.limited, g.flat > 0} {
			if is {
				asked++
			}
		}
		if asked > 1 || g.flat > 0 && g.small == "" {
			t.Errorf("%q asks for %d things", g.work, asked)
		}
	}
}

func TestPageKeepsWhatIsOutsideOfTheMarkers(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	for _, text := range []string{"first\n", "second\n"} {
		if text == "first\n" {
			if err := os.WriteFile(page, []byte("above\n"+beginMarker+endMarker+"below\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := replaceBetweenMarkers(page, text); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if expected := "above\n" + beginMarker + text + endMarker + "below\n"; string(got) != expected {
			t.Errorf("the page is %q", got)
		}
	}
	if err := os.WriteFile(page, []byte("no markers\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replaceBetweenMarkers(page, "x"); err == nil {
		t.Error("a page without markers was written")
	}
}

func TestNumbersAreReadable(t *testing.T) {
	for v, expected := range map[float64]string{0: "0", 1.4: "1.4", 12.345: "12.3", 999.6: "1000", 12121: "12,121", 1e6: "1,000,000"} {
		if got := number(v); got != expected {
			t.Errorf("%v: %q, expected %q", v, got, expected)
		}
	}
	for v, expected := range map[float64]string{870: "870 ns", 1200: "1.2 µs", 4.73e6: "4.73 ms", 61e9: "61 s"} {
		if got := quantity("ns/op", v); got != expected {
			t.Errorf("%v: %q, expected %q", v, got, expected)
		}
	}
}

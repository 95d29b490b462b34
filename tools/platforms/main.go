// Command platforms vets a module for platforms and build tags, its tests included, and fails if it finds anything. Unlike go vet it
// compiles nothing: it reads the types of all imported packages from their source. It does not look into functions of other
// modules. Run it in tools/:
//
//	go run ./platforms linux/arm64 windows/amd64
//	go run ./platforms -root ../bridge/csi -tags nfsguest linux/amd64
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/packages"
)

func main() {
	var m module
	flag.StringVar(&m.dir, "root", "..", "the directory of the module")
	flag.StringVar(&m.tags, "tags", "", "build tags, with commas between them")
	flag.Parse()
	debug.SetGCPercent(400) // It needs 2 GB so, and a third less time.
	failed := false
	for _, platform := range flag.Args() {
		_, _ = fmt.Fprintln(os.Stdout, platform)
		if err := m.check(os.Stderr, platform); err != nil {
			fmt.Fprintf(os.Stderr, "platforms: %s: %v\n", platform, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// module is what is vetted.
type module struct{ dir, tags string }

// check prints what is wrong on platform, "GOOS/GOARCH".
func (m module) check(w io.Writer, platform string) error {
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok {
		return fmt.Errorf("a platform is GOOS/GOARCH")
	}
	pkgs, err := packages.Load(&packages.Config{
		Mode:       packages.LoadAllSyntax | packages.NeedModule,
		Dir:        m.dir,
		Env:        append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
		BuildFlags: []string{"-tags=" + m.tags},
		Tests:      true,
	}, "./...")
	if err != nil {
		return fmt.Errorf("loading the packages: %w", err)
	}
	if n := packages.PrintErrors(pkgs); n > 0 {
		return fmt.Errorf("packages with %d errors", n)
	}
	graph, err := checker.Analyze(vet.Suite, pkgs, nil)
	if err != nil {
		return fmt.Errorf("vetting the packages: %w", err)
	}
	return findings(w, graph)
}

func findings(w io.Writer, graph *checker.Graph) error {
	found := 0
	for _, action := range graph.Roots {
		if action.Err != nil {
			return fmt.Errorf("vetting %s: %w", action.Package.ID, action.Err)
		}
		for _, d := range action.Diagnostics {
			fmt.Fprintf(w, "%s: %s (%s)\n", action.Package.Fset.Position(d.Pos), d.Message, action.Analyzer.Name)
			found++
		}
	}
	if found > 0 {
		return fmt.Errorf("%d findings", found)
	}
	return nil
}

// Command api compares the exported API of the released modules with the list of the last release, in api/ of the
// repository. It fails if a line of that list is missing and api/except.txt does not name it. Run it in tools/:
//
//	go run ./api          compare
//	go run ./api -print   print the list of this checkout
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/volumekit/volumekit/tools/internal/modules"
)

func main() {
	root := flag.String("root", "..", "the directory of the repository")
	printIt := flag.Bool("print", false, "print the list of this checkout")
	flag.Parse()
	run := compare
	if *printIt {
		run = list
	}
	if err := run(os.Stdout, *root); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

func list(w io.Writer, root string) error {
	lines, err := modules.Exported(root)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

var errBroken = errors.New("what was released is gone or changed: bring it back; or, before v1, add the lines to api/except.txt and " +
	"say in CHANGELOG.md what users must do")

func compare(w io.Writer, root string) error {
	released, err := modules.LastList(root)
	if err != nil {
		return err
	}
	if released == "" {
		fmt.Fprintln(w, "no release has left a list of its API in api/: nothing to compare")
		return nil
	}
	missing, err := modules.MissingSince(root, released)
	if err != nil {
		return err
	}
	for _, line := range missing {
		fmt.Fprintln(w, "-", line)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d lines of %s: %w", len(missing), released, errBroken)
	}
	return nil
}

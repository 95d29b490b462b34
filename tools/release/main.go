// Command release makes a release of all modules of this repository, but publishes nothing. Run it in tools/:
//
//	go run ./release v0.1.0
//
// It works in its own clone of the commit that is checked out, and leaves two commits on a new branch release-v0.1.0:
//
//   - The first is to be merged: CHANGELOG.md has a section of the version, and api/v0.1.0.txt the exported API.
//   - The second is to be tagged: each module that is released requires the others at that version and replaces none of them,
//     so that it is built here as its users build it.
//
// Then it tests the second commit. It makes a module proxy from it, gets each module in an empty folder and compiles
// all packages, installs the commands by their paths, and runs the program of the README. At the end it prints the tags
// in the order in which to push them. If anything fails, it leaves no branch.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./release VERSION")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) //nolint:forbidigo // the first of all contexts
	defer stop()
	if err := makeRelease(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

func makeRelease(ctx context.Context, version string) error {
	r, err := begin(ctx, "..", version)
	if err != nil {
		return err
	}
	err = r.do(ctx)
	return r.end(ctx, err)
}

// Become is a second process for package faultrun. It starts faster than a test binary with the race detector. See
// faultrun.Program.
package main

import (
	"fmt"
	"os"

	"github.com/volumekit/volumekit/internal/faultrun"
)

func main() {
	faultrun.Main()
	fmt.Fprintln(os.Stderr, "become: only package faultrun starts this")
	os.Exit(2)
}

// Become is a second process for package faultrun that starts quickly: a test binary with the race detector takes a
// while. See faultrun.Program.
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

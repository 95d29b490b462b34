//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "become: this works on Linux only")
	os.Exit(2)
}

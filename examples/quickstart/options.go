package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/volumekit/volumekit/examples/internal/sandbox"
	"github.com/volumekit/volumekit/examples/internal/show"
)

// options are the flags.
type options struct {
	file      string         // the manifests; empty means the built-in ones, "-" standard input
	root      string         // the directory under which everything is made; empty means a fresh one
	timeout   time.Duration  // how long the pods may take to become ready, and to go
	documents show.Documents // JSON lines on standard output
	keep      bool           // wait for a signal before the pods are removed
	http      string         // the address of a page with the phase of every volume; empty means none
}

// defaultTimeout is how long pods may take; ordinary ones take less than a second.
const defaultTimeout = time.Minute

// parseOptions reads the flags. The error is flag.ErrHelp if the user asked for help, and otherwise a [show.InputError].
func parseOptions(args []string, usage io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints the error, once
	flags.StringVar(&o.file, "f", "", "`FILE` with the manifests, YAML or JSON; \"-\" reads standard input (default: the built-in ones)")
	flags.StringVar(&o.root, "root", "", "`DIR` under which everything is made; new or empty (default: a fresh one)")
	flags.DurationVar(&o.timeout, "timeout", defaultTimeout, "how long the pods may take to become ready, and to go")
	flags.BoolVar((*bool)(&o.documents), "json", false, "print one JSON document per line; the story goes to standard error")
	flags.BoolVar(&o.keep, "keep", false, "leave everything mounted until Ctrl-C")
	flags.StringVar(&o.http, "http", "", "`ADDRESS` of a page that shows where every volume stands, such as 127.0.0.1:8080")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(usage)
		flags.Usage()
		return o, err
	case err != nil:
		return o, show.BadInput(fmt.Errorf("%w: -h lists the flags", err))
	case flags.NArg() > 0:
		return o, show.BadInput(fmt.Errorf("argument %q is not used: give manifests with -f %s", flags.Arg(0), flags.Arg(0)))
	case o.timeout <= 0:
		return o, show.BadInput(fmt.Errorf("-timeout %s: give a time above zero, such as 30s", o.timeout))
	}
	return o, nil
}

// makeRoot makes the root directory of o: a fresh one, or the one that -root names.
func makeRoot(o options) (sandbox.Root, error) {
	root, err := sandbox.MakeRoot(o.root, containersDir)
	if err != nil && o.root != "" {
		err = show.BadInput(err)
	}
	return root, err
}

package format

import (
	"fmt"
	"strings"
)

// ToolError says that a program could not be run, or failed. It matches [ErrNoTool] if the program is missing, and the context's error
// if the program was killed because the context ended.
type ToolError struct {
	// Tool is the program's name, such as "mkfs.ext4".
	Tool string
	// Package is the Debian package that has the program.
	Package string
	// Device is the file or device of the call; empty if there is none.
	Device string
	// ExitCode is the program's exit code; -1 if it did not end by itself.
	ExitCode int
	// Output is the end of the program's output.
	Output string
	// Err is the cause; never nil.
	Err error
}

// Error names the program and the device, and quotes the end of the output.
func (e *ToolError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", e.Tool)
	if e.Device != "" {
		fmt.Fprintf(&b, " on %q", e.Device)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Output != "" {
		fmt.Fprintf(&b, ": %s", strings.Join(strings.Fields(e.Output), " "))
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *ToolError) Unwrap() error { return e.Err }

// maker describes the tool that makes filesystems of one type.
type maker struct {
	// pkg is the Debian package of the tool.
	pkg string
	// args come before the label and the device. They forbid discarding blocks, and questions.
	args []string
	// label is the option for the label.
	label string
}

// makers are the tools by type of filesystem.
var makers = map[string]maker{
	"ext2":  {pkg: "e2fsprogs", args: extArgs(), label: "-L"},
	"ext3":  {pkg: "e2fsprogs", args: extArgs(), label: "-L"},
	"ext4":  {pkg: "e2fsprogs", args: extArgs(), label: "-L"},
	"xfs":   {pkg: "xfsprogs", args: []string{"-q", "-K"}, label: "-L"},
	"btrfs": {pkg: "btrfs-progs", args: []string{"-q", "-K"}, label: "-L"},
}

// extArgs returns -F, because an image is no device, and -m0, like Kubernetes.
func extArgs() []string { return []string{"-q", "-F", "-m", "0", "-E", "nodiscard"} }

func makerOf(fsType string) (maker, error) {
	m, ok := makers[fsType]
	if !ok {
		return maker{}, fmt.Errorf("filesystem %q: use ext4, ext3, ext2, xfs or btrfs: %w", fsType, ErrUnknownType)
	}
	return m, nil
}

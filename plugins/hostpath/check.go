package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// TypeError says that what is at a path is not what the volume's type asks for. It matches volume.ErrInvalid when
// something else is there, and its cause, such as fs.ErrNotExist, when the path could not be looked at or made.
type TypeError struct {
	// Path is the absolute host path.
	Path string
	// Want is the type of the volume.
	Want v1.HostPathType
	// Found is what is at the path, in words; empty when that is not known or nothing is there.
	Found string
	// Err is why the path could not be looked at or made; nil when something else is there.
	Err error
}

// Error says what was found and what to change.
func (e *TypeError) Error() string {
	want := kinds[e.Want].noun
	switch {
	case e.Found != "":
		return fmt.Sprintf("%s is a %s and not a %s: change the path or the type %q", e.Path, e.Found, want, e.Want)
	case errors.Is(e.Err, fs.ErrNotExist) && kinds[e.Want].make == nil:
		return fmt.Sprintf("%s does not exist: make a %s there or change the type %q%s", e.Path, want, e.Want, orCreate(e.Want))
	default:
		return fmt.Sprintf("%s cannot be used as a %s: %v", e.Path, want, e.Err)
	}
}

// Unwrap returns the cause, or volume.ErrInvalid where something else is there.
func (e *TypeError) Unwrap() error {
	if e.Err == nil {
		return volume.ErrInvalid
	}
	return e.Err
}

// orCreate names the type that makes what is missing, where there is one.
func orCreate(want v1.HostPathType) string {
	switch want {
	case v1.HostPathDirectory:
		return fmt.Sprintf(" to %q", v1.HostPathDirectoryOrCreate)
	case v1.HostPathFile:
		return fmt.Sprintf(" to %q", v1.HostPathFileOrCreate)
	default:
		return ""
	}
}

// kind is what a type asks for.
type kind struct {
	noun string
	is   func(fs.FileMode) bool
	// make makes what is missing; nil for a type that makes nothing.
	make func(ctx context.Context, p *Plugin, path string) error
}

// kinds are all types but the one that checks nothing.
var kinds = map[v1.HostPathType]kind{
	v1.HostPathDirectory:         {noun: "directory", is: fs.FileMode.IsDir},
	v1.HostPathDirectoryOrCreate: {noun: "directory", is: fs.FileMode.IsDir, make: makeDirectory},
	v1.HostPathFile:              {noun: "regular file", is: fs.FileMode.IsRegular},
	v1.HostPathFileOrCreate:      {noun: "regular file", is: fs.FileMode.IsRegular, make: makeFile},
	v1.HostPathSocket:            {noun: "socket", is: isOf(fs.ModeSocket)},
	v1.HostPathCharDev:           {noun: "character device", is: isOf(fs.ModeDevice | fs.ModeCharDevice)},
	v1.HostPathBlockDev:          {noun: "block device", is: isOf(fs.ModeDevice)},
}

func isOf(want fs.FileMode) func(fs.FileMode) bool {
	return func(mode fs.FileMode) bool { return mode.Type() == want }
}

// describe says what has this mode.
func describe(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode.IsRegular():
		return "regular file"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeCharDevice != 0:
		return "character device"
	case mode&fs.ModeDevice != 0:
		return "block device"
	}
	return "file of unknown type"
}

// checkSyntax checks what needs no look at the filesystem. Errors match volume.ErrInvalid.
func checkSyntax(path string, want v1.HostPathType) error {
	if _, known := kinds[want]; !known && want != v1.HostPathUnset {
		return fmt.Errorf("type %q is not known: use one of %s, or none: %w", want, typeNames, volume.ErrInvalid)
	}
	switch {
	case path == "":
		return fmt.Errorf("the path is empty: give an absolute path: %w", volume.ErrInvalid)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("path %q holds a NUL: remove it: %w", path, volume.ErrInvalid)
	case !filepath.IsAbs(path):
		return fmt.Errorf("path %q is relative: give an absolute path: %w", path, volume.ErrInvalid)
	}
	return volume.ValidatePathNoBacksteps(path)
}

const typeNames = "Directory, DirectoryOrCreate, File, FileOrCreate, Socket, CharDevice, BlockDevice"

// checkType looks at path, following links, and makes what is missing where the type says so.
func (p *Plugin) checkType(ctx context.Context, path string, want v1.HostPathType) error {
	if want == v1.HostPathUnset {
		return nil
	}
	found, err := p.files.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && kinds[want].make != nil {
		found, err = p.makeAndLook(ctx, path, want)
	}
	if err != nil {
		return &TypeError{Path: path, Want: want, Err: err}
	}
	if !kinds[want].is(found.Mode()) {
		return &TypeError{Path: path, Want: want, Found: describe(found.Mode())}
	}
	return nil
}

// makeAndLook makes what is missing. Another process may be faster: what is there then decides.
func (p *Plugin) makeAndLook(ctx context.Context, path string, want v1.HostPathType) (fs.FileInfo, error) {
	if err := kinds[want].make(ctx, p, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, notApart(err)
	}
	return p.files.Stat(path)
}

func makeDirectory(ctx context.Context, p *Plugin, path string) error {
	return p.files.MkdirApart(ctx, path, 0o755, p.protected...)
}

func makeFile(ctx context.Context, p *Plugin, path string) error {
	return p.files.CreateApart(ctx, path, 0o644, p.protected...)
}

package atomicwriter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volumekit/volumekit/internal/outcome"
)

// The errors of this package. Match them with errors.Is.
var (
	// ErrInvalid says that the directory's path, or a path, a mode or an owner in the payload is invalid. Nothing was changed.
	ErrInvalid = errors.New("invalid")
	// ErrForeign says that a name which the writer needs is taken: by a directory that is not empty, by a mount or, for a
	// user-visible name, by anything but a link. Write did not change it.
	ErrForeign = errors.New("not the writer's own")
	// ErrConflict says that another Write, or a workload, has changed the writer's names while it worked.
	ErrConflict = errors.New("another Write or a workload has changed it meanwhile")
)

// FileProjection is one file of a payload.
type FileProjection struct {
	// Data is the content of the file. The writer does not change or keep it.
	Data []byte
	// Mode has the permission bits, 0 to 0777. The file gets exactly these: the umask does not count. There is no default: with
	// mode 0 only root may read the file.
	Mode int32
	// FsUser is the id of the user that owns the file and the link to it, 0 to 4294967294. Nil means the user of this process. Only
	// root may name another user.
	FsUser *int64
}

// Options are the options of a writer. The zero value is useful.
type Options struct {
	// SetPerms, if not nil, is called with the directory of each new set, after all files are written and before the set is
	// published. It can change the group of the whole set. dir is open for reading; the writer closes it. dir.Name() is its absolute
	// path. A workload may meanwhile have put another directory at that path, but the descriptor stays valid. If SetPerms fails, the
	// set is removed and not published. SetPerms is not called if nothing has changed.
	SetPerms func(ctx context.Context, dir *os.File) error
	// Sync says that a set must be on the disk before it is published: a power cut then leaves the old or the new set. This process
	// must be able to read the files that it writes. On a tmpfs Sync has no effect.
	Sync bool
}

// Result is the result of a Write. All lists are sorted.
type Result struct {
	// Published says that "..data" leads to a new set. If it is false after a success, the earlier set already had the payload.
	Published bool
	// Dir is the name, in the volume's directory, of the directory to which "..data" leads. It is empty if no set is published.
	Dir string
	// Added, Modified and Removed are the paths of files whose content differs from the earlier set. All are empty if only modes or
	// owners have changed. Removed is cut off after some thousands.
	Added, Modified, Removed []string
	// Linked are the user-visible names whose links were made anew: they were missing or wrong, or had another owner.
	Linked []string
	// Pruned are the user-visible names that were removed, because no path of the payload begins with them.
	Pruned []string
	// Cleared are the names of leftovers of an earlier Write, which were removed.
	Cleared []string
}

// AtomicWriter publishes payloads in one directory. Between two calls it has no open files.
//
// It may be copied and used from several goroutines. The package comment says what happens if two Writes run at once.
type AtomicWriter struct {
	dir     string
	options Options
	// before is called before each system call with an effect. Its error is returned instead of the call. Nil for none.
	before func(call, name string) error
	// withoutOpenat2 makes the writer use the system calls of older kernels.
	withoutOpenat2 bool
}

// New returns a writer for the directory dir, an absolute path without an element "..". The directory must exist when Write is called,
// and its last element must not be a symbolic link. New checks only the text of the path. Its error matches [ErrInvalid].
func New(dir string, o Options) (*AtomicWriter, error) {
	clean := filepath.Clean(dir)
	switch {
	case !filepath.IsAbs(dir):
		return nil, fmt.Errorf("directory %q is not an absolute path: %w", dir, ErrInvalid)
	case strings.Contains(filepath.ToSlash(dir)+"/", "/../"):
		return nil, fmt.Errorf("directory %q holds an element \"..\": %w", dir, ErrInvalid)
	case strings.ContainsRune(dir, 0):
		return nil, fmt.Errorf("directory %q holds a NUL: %w", dir, ErrInvalid)
	case filepath.Dir(clean) == clean:
		return nil, fmt.Errorf("directory %q is the root: give a directory of the volume's own: %w", dir, ErrInvalid)
	}
	return &AtomicWriter{dir: clean, options: o}, nil
}

// Dir returns the volume's directory, an absolute path in its shortest form.
func (w *AtomicWriter) Dir() string { return w.dir }

// Write publishes payload in the directory, and removes what a writer has published there before. An empty payload publishes an empty
// set.
//
// Each path of the payload is relative, has at most 4096 bytes and elements of at most 255 bytes, has no element "..", and does not begin
// with "..". Write uses its shortest form. If two paths are then the same, or one is a directory of another, the error matches
// [ErrInvalid].
//
// If ctx ends before the new set is published, nothing is published, and the error is that of ctx. If it ends later, Write still makes
// the links, and the next Write removes the rest of the old set. If the directory does not exist, the error matches fs.ErrNotExist.
// Errors of the kernel match their errno: ENOSPC, EROFS, EDQUOT, EMFILE, ... No error contains data of the payload.
//
// If the error matches volume.ErrUncertain, the new set is published, or something was left in the directory: see Result. Call Write
// again to complete it.
func (w *AtomicWriter) Write(ctx context.Context, payload map[string]FileProjection) (Result, error) {
	want, err := newSet(payload)
	if err != nil {
		return Result{}, fmt.Errorf("payload for %q: %w", w.dir, err)
	}
	return w.write(ctx, want)
}

// uncertain makes err match volume.ErrUncertain. Nil stays nil.
func uncertain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (%w)", err, outcome.ErrUncertain)
}

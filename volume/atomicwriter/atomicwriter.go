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
	// ErrInvalid says that the directory's path, or a path, a mode or an owner in the payload cannot be. Nothing was done.
	ErrInvalid = errors.New("invalid")
	// ErrForeign says that something that is not the writer's lies at a name that it needs: a directory that is not empty, a
	// mount, or at a user-visible name anything but a link. It was not touched.
	ErrForeign = errors.New("not the writer's own")
	// ErrConflict says that another Write, or a workload, has changed the writer's names while it worked.
	ErrConflict = errors.New("another Write or a workload has changed it meanwhile")
)

// FileProjection is one file of a payload.
type FileProjection struct {
	// Data is what the file holds. It is not changed and not kept.
	Data []byte
	// Mode holds the permission bits, 0 to 0777, exactly as the file gets them, whatever the umask. The zero value is a file
	// that only root may read: there is no default.
	Mode int32
	// FsUser is the user id that owns the file, 0 to 4294967294, and the link to it; nil leaves the owner who writes. A
	// writer that is not root may only name itself.
	FsUser *int64
}

// Options says how a writer works. The zero value is useful.
type Options struct {
	// SetPerms, if it is set, is called with each new directory when all its files are written and before it is published:
	// the place to give a whole set to a group. dir is open for reading and is closed by the writer; dir.Name() is its
	// absolute path for what needs one, which a workload may have made another's by then, while the descriptor stays true.
	// If it fails, the set is not published and is removed. It is not called when nothing has changed.
	SetPerms func(ctx context.Context, dir *os.File) error
	// Sync says that a set must be on the disk before it is published, so that a loss of power leaves the old set or the
	// new one. This process must then be able to read the files that it writes. On a tmpfs it changes nothing.
	Sync bool
}

// Result says what a Write has done. All lists are sorted, and empty when there is nothing to tell.
type Result struct {
	// Published says that "..data" leads to a new set. When it is false, the set that was there is the payload.
	Published bool
	// Dir is the name, in the volume's directory, of the directory that "..data" leads to. Empty when nothing is published.
	Dir string
	// Added, Modified and Removed are the paths of files, compared with the set that was published before, by what they
	// hold. All are empty when only modes or owners have changed. Removed is cut off after some thousands.
	Added, Modified, Removed []string
	// Linked are the user-visible names whose links were missing or wrong, or had another owner.
	Linked []string
	// Pruned are the user-visible names that were removed, because no path of the payload begins with them.
	Pruned []string
	// Cleared are the names of leftovers of an earlier Write, which were removed.
	Cleared []string
}

// AtomicWriter publishes payloads in one directory. It holds nothing open between two calls.
//
// It may be copied and used from several goroutines; see the package comment for what two Writes at once mean.
type AtomicWriter struct {
	dir     string
	options Options
	// before is told of each call that changes the world just before it is made, and may fail in its place. Nil for none.
	before func(call, name string) error
	// withoutOpenat2 says to use the calls that older kernels have.
	withoutOpenat2 bool
}

// New returns a writer for the directory dir, an absolute path without an element "..". The directory must be there when
// Write is called, and its last element must not be a symbolic link. New looks at the path only; an error matches
// [ErrInvalid].
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

// Write makes the directory show payload and nothing else that a writer has published there. An empty payload publishes
// an empty set.
//
// Each path of the payload is relative, has at most 4096 bytes with elements of at most 255, no element "..", and does not
// begin with ".."; it is used in its shortest form. Two that are the same file then, or of which one would have to be a
// directory, are refused, with an error that matches [ErrInvalid].
//
// When ctx ends before the new set is published, nothing is published and the error is ctx's. When it ends later, the
// links are still made; what is left of the old set is removed by the next Write. A directory that does not exist is an
// error that matches fs.ErrNotExist. Errors that the kernel gives match their errno: ENOSPC, EROFS, EDQUOT, EMFILE, ...
// None of them holds data of the payload.
//
// An error that matches outcome "uncertain" (volume.ErrUncertain, by errors.Is) says that the new set is published, or that
// something was left in the directory, see Result. Call Write again to put the rest right.
func (w *AtomicWriter) Write(ctx context.Context, payload map[string]FileProjection) (Result, error) {
	want, err := newSet(payload)
	if err != nil {
		return Result{}, fmt.Errorf("payload for %q: %w", w.dir, err)
	}
	return w.write(ctx, want)
}

// uncertain marks err as one after which something new may be there. Nil stays nil.
func uncertain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (%w)", err, outcome.ErrUncertain)
}

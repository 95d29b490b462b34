package safepath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/descriptor"
	"github.com/volumekit/volumekit/mount"
)

// Root is an open directory beneath which is worked. Its methods may be called from several goroutines at once; they take
// turns, so that no more than one call can be stuck in the filesystem. A name is
// relative, as [CheckName] wants it, and is resolved anew by each call; no link in it is followed. Mounts beneath the root
// are entered, unless the method says otherwise. An error is an [*Error].
type Root struct {
	dir     *os.File
	path    string
	mounter mount.Interface
	without mount.Feature
	calls   *abandonable.Calls
	key     string // of the calls
}

// Options says how a [Root] works. The zero value is ready to use.
type Options struct {
	// Mounter makes the binds and knows the mount table. Nil is a mount.Mounter of the root's own, which does not know the
	// abandoned calls of others: give the one that the program has.
	Mounter mount.Interface
	// FollowLinks follows the symbolic links in the path of the root itself. It is for a path that the operator of the host
	// has chosen, all parents of which belong to the host.
	FollowLinks bool
	// Without names kernel features that are treated as missing, so that tests can walk the fall-backs.
	Without mount.Feature

	calls *abandonable.Calls // nil: the root has its own
}

// Open opens the directory at the absolute path as a root. An element of path that is a symbolic link is an error that
// matches [ErrEscapes], unless the options say otherwise; a path that does not exist one that matches fs.ErrNotExist.
func Open(ctx context.Context, hostPath string, options Options) (*Root, error) {
	r := newRoot(hostPath, options)
	if !path.IsAbs(hostPath) || strings.ContainsRune(hostPath, 0) || strings.Contains(hostPath+"/", "/../") {
		return nil, r.wrap("open root", "", fmt.Errorf("not an absolute path without \"..\": %w", ErrInvalid))
	}
	file, err := run(ctx, r.calls, r.key, closeFile, func(ctx context.Context) (*os.File, error) {
		return openRoot(ctx, r.path, options)
	})
	if err != nil {
		return nil, r.wrap("open root", "", err)
	}
	r.dir = file
	return r, nil
}

// fromFile makes a root of an open directory, which may be open without access (O_PATH). The root has a descriptor of its
// own; dir stays the caller's. Its name (os.File.Name) is used in errors only.
func fromFile(dir *os.File, options Options) (*Root, error) {
	r := newRoot(dir.Name(), options)
	file, err := duplicate(dir)
	if err != nil {
		return nil, r.wrap("open root", "", err)
	}
	r.dir = file
	return r, nil
}

func newRoot(hostPath string, options Options) *Root {
	hostPath = path.Clean(hostPath)
	r := &Root{
		path: hostPath, key: hostPath,
		mounter: options.Mounter, without: options.Without, calls: options.calls,
	}
	if r.mounter == nil {
		r.mounter = mount.New(mount.Options{Without: options.Without})
	}
	if r.calls == nil {
		r.calls = newCalls()
	}
	return r
}

// OpenOrMake is [Open] that makes the directory, and those above it, when it is missing. It makes each beneath the descriptor
// of the one above and follows no link, so that a link that comes in between leads nowhere: the error matches [ErrEscapes].
// Options must not say FollowLinks.
func OpenOrMake(ctx context.Context, hostPath string, dirs MkdirOptions, options Options) (*Root, error) {
	if options.FollowLinks {
		return nil, newRoot(hostPath, options).wrap("make root", "", fmt.Errorf("nothing is made through links: %w", ErrInvalid))
	}
	root, err := Open(ctx, hostPath, options)
	if !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	top, err := Open(ctx, "/", options)
	if err != nil {
		return nil, err
	}
	defer func() { _ = top.Close() }() // nothing was written to it
	if err := top.MkdirAll(ctx, strings.TrimPrefix(path.Clean(hostPath), "/"), dirs); err != nil {
		return nil, err
	}
	return Open(ctx, hostPath, options)
}

// checkApart returns an error that matches [ErrOverlap] when the directory of the root is one of the absolute paths in apart,
// lies in one, or holds one. It compares what is open, by device and inode: what comes into the path of the root later makes no
// difference. Links in apart are followed. One that does not exist lies where it would be made.
func (r *Root) checkApart(ctx context.Context, apart ...string) error {
	_, err := doHere(ctx, r.to("use", ""), ignore, func(ctx context.Context, t *tree) (struct{}, error) {
		return struct{}{}, errors.Join(t.checkOutside(ctx, apart), t.checkHoldsNone(ctx, apart))
	})
	return err
}

// CheckOutside is checkApart for a directory that may hold the others, such as one in which something is made.
func (r *Root) CheckOutside(ctx context.Context, others ...string) error {
	_, err := doHere(ctx, r.to("use", ""), ignore, func(ctx context.Context, t *tree) (struct{}, error) {
		return struct{}{}, t.checkOutside(ctx, others)
	})
	return err
}

// Directory opens the directory of the root for reading. It is for system calls that work beneath a descriptor.
func (r *Root) Directory(ctx context.Context) (*os.File, error) {
	return doHere(ctx, r.to("open", ""), closeFile, func(ctx context.Context, t *tree) (*os.File, error) {
		return t.openDirectory(ctx, r.path)
	})
}

// Close closes the root. Calls that are under way end as they would have; later ones fail with an error that matches
// os.ErrClosed.
func (r *Root) Close() error { return r.dir.Close() }

// Open opens what is at name for reading, if it is of one of the kinds: Directory, RegularFile or both. What is there is
// looked at before it is opened, so that the call neither waits for the other end of a pipe nor wakes a device. Something
// else is a [*KindError].
func (r *Root) Open(ctx context.Context, name string, kinds Kind) (*os.File, error) {
	if kinds == 0 || kinds&^(Directory|RegularFile) != 0 {
		return nil, r.wrap("open", name, fmt.Errorf("a %v is not opened for reading: %w", kinds, ErrInvalid))
	}
	return do(ctx, r.to("open", name), closeFile, func(ctx context.Context, t *tree) (*os.File, error) {
		return t.openFile(ctx, name, kinds)
	})
}

// OpenPath opens what is at name without access to its content (O_PATH), if it is of one of the kinds. It is for system
// calls that take a descriptor in the place of a path.
func (r *Root) OpenPath(ctx context.Context, name string, kinds Kind) (*os.File, error) {
	return do(ctx, r.to("open", name), closeFile, func(ctx context.Context, t *tree) (*os.File, error) {
		return t.openPathFile(ctx, name, kinds)
	})
}

// Sub opens the directory at name as a root of its own. Its calls take turns with those of r.
func (r *Root) Sub(ctx context.Context, name string) (*Root, error) {
	file, err := r.OpenPath(ctx, name, Directory)
	if err != nil {
		return nil, err
	}
	return r.sub(name, file), nil
}

// SubOnMount is [Root.Sub] that enters no mount: where one is at name, or on the way to it, the error matches [ErrMounted].
func (r *Root) SubOnMount(ctx context.Context, name string) (*Root, error) {
	file, err := do(ctx, r.to("open", name), closeFile, func(ctx context.Context, t *tree) (*os.File, error) {
		return t.openOnMount(ctx, name)
	})
	if err != nil {
		return nil, err
	}
	return r.sub(name, file), nil
}

// sub returns the root of a directory beneath this one, which is open.
func (r *Root) sub(name string, file *os.File) *Root {
	sub := *r
	sub.dir, sub.path = file, r.path+"/"+name
	return &sub
}

// MkdirOptions says how directories are made.
type MkdirOptions struct {
	// Mode is what each directory that is made has in the end, whatever the umask of the process: permissions, fs.ModeSetgid,
	// fs.ModeSetuid and fs.ModeSticky. The zero value is 0750.
	Mode fs.FileMode
	// Group is the numeric group of each directory that is made. Nil leaves the one that the kernel gives.
	Group *int
}

// MkdirAll makes the directory at name and those above it that are missing. A directory that is there is left as it is;
// anything else in its place is a [*KindError], and a link an error that matches [ErrEscapes]. Between its creation and the
// end of the call a directory may have fewer permissions than it should, and keeps those when the machine stops there. When
// the call fails, what it has made is removed again.
//
// Before a directory is given more permissions than mkdir gave it, it is proven to be new: empty, and ours. If another process
// puts another directory in its place, that one keeps its mode: the error matches [ErrRaced]. Filesystems whose
// server says what belongs to whom (NFS, SMB, FUSE and the like) are believed.
func (r *Root) MkdirAll(ctx context.Context, name string, options MkdirOptions) error {
	_, err := do(ctx, r.to("make directory", name), ignore, func(ctx context.Context, t *tree) (struct{}, error) {
		return struct{}{}, t.mkdirAll(ctx, name, options)
	})
	return err
}

// MakeDirectory makes the directory name, and those above it, of that mode whatever the umask of the process. One that is there
// is given the mode where it lacks a part of it: the process that made it may have been killed before it had its mode. It reports
// whether it was not there.
func (r *Root) MakeDirectory(ctx context.Context, name string, mode fs.FileMode) (made bool, err error) {
	dir, err := r.Open(ctx, name, Directory)
	if errors.Is(err, fs.ErrNotExist) {
		made = true
		if err = r.MkdirAll(ctx, name, MkdirOptions{Mode: mode}); err == nil {
			dir, err = r.Open(ctx, name, Directory)
		}
	}
	if err != nil {
		return made, err
	}
	defer func() { _ = dir.Close() }() // nothing was written to it
	info, err := dir.Stat()
	if err != nil || info.Mode().Perm()&mode == mode {
		return made, err
	}
	return made, dir.Chmod(mode)
}

// Create makes an empty file with the mode, whatever the umask. Whatever is at name already, also a link, is an error that
// matches fs.ErrExist.
func (r *Root) Create(ctx context.Context, name string, mode fs.FileMode) error {
	_, err := do(ctx, r.to("create", name), ignore, func(ctx context.Context, t *tree) (struct{}, error) {
		return struct{}{}, t.create(ctx, name, mode)
	})
	return err
}

// Remove removes one empty directory, or one file whatever its content; a link as such. What is mounted, or lies in a
// mount beneath the root, is an error that matches [ErrMounted], and what is not there one that matches fs.ErrNotExist.
func (r *Root) Remove(ctx context.Context, name string) error {
	_, err := do(ctx, r.to("remove", name), ignore, func(ctx context.Context, t *tree) (struct{}, error) {
		return struct{}{}, t.remove(ctx, name)
	})
	return err
}

// RemoveAll removes what is at name with all that is in it. It follows no link and enters no mount, not even a bind of the
// same filesystem. Where the mount table shows a mount at name or inside, nothing at all is removed; one that is met later
// stops the work, and whatever is in it stays. Both errors match [ErrMounted]. A name that does not exist is no error. When
// a process keeps writing to it, the error matches [ErrRaced]: end the workload first. The depth of the tree costs neither
// stack nor descriptors.
func (r *Root) RemoveAll(ctx context.Context, name string) error {
	_, err := do(ctx, r.to("remove", name), ignore, func(ctx context.Context, t *tree) (struct{}, error) {
		return struct{}{}, t.removeAll(ctx, name, r.mounter)
	})
	return err
}

// RemoveContent removes all that is in the root itself, as RemoveAll does with each entry. The root stays, and may be a mount.
// Where the mount table shows a mount anywhere in it, nothing at all is removed. What comes into it meanwhile may stay.
func (r *Root) RemoveContent(ctx context.Context) error {
	_, err := doHere(ctx, r.to("remove the content of", ""), ignore, func(ctx context.Context, t *tree) (struct{}, error) {
		return struct{}{}, t.removeContent(ctx, r.mounter)
	})
	return err
}

// task is what is to be done to a name beneath a root.
type task struct {
	root *Root
	op   string // for errors
	name string
}

func (r *Root) to(op, name string) task { return task{r, op, name} }

// do runs op on the root, bounded by ctx. Discard is given a result that no caller waits for any more.
func do[T any](ctx context.Context, what task, discard func(T),
	op func(context.Context, *tree) (T, error),
) (result T, err error) {
	if err := CheckName(what.name); err != nil {
		return result, what.root.wrap(what.op, what.name, err)
	}
	return doHere(ctx, what, discard, op)
}

// doHere is do for what has no name, or one that was checked.
func doHere[T any](ctx context.Context, what task, discard func(T),
	op func(context.Context, *tree) (T, error),
) (result T, err error) {
	r := what.root
	result, err = run(ctx, r.calls, r.key, discard, func(ctx context.Context) (result T, err error) {
		usedErr := use(r.dir, func(fd int) { result, err = op(ctx, &tree{fd: fd, without: r.without}) })
		if usedErr != nil {
			return result, usedErr
		}
		return result, err
	})
	return result, r.wrap(what.op, what.name, err)
}

// use lends the descriptor of file, which stays open for that long even when the file is closed meanwhile.
func use(file *os.File, with func(fd int)) error {
	return descriptor.With(file, func(fd int) error {
		with(fd)
		return nil
	})
}

func (r *Root) wrap(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: what, Root: r.path, Name: name, Err: err}
}

func ignore(struct{}) {}

func closeFile(file *os.File) {
	if file != nil {
		_ = file.Close() // nothing was written
	}
}

// RemoveTree removes what is at the absolute path with all that is in it, by [Root.RemoveAll] of the directory that holds it,
// to whose path the options apply. A path that does not exist is no error.
func RemoveTree(ctx context.Context, hostPath string, options Options) error {
	parent, err := Open(ctx, path.Dir(path.Clean(hostPath)), options)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }() // nothing was written to it
	return parent.RemoveAll(ctx, path.Base(hostPath))
}

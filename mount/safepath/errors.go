package safepath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// The sentinels of this package. Match them with errors.Is; the errno of a failed system call is kept beside them.
// mount.ErrUncertain, mount.ErrTransient, mount.ErrStuck and mount.ErrForeign have the meaning that they have there.
var (
	// ErrInvalid says that a name or a request is malformed. Nothing was touched.
	ErrInvalid = errors.New("invalid name or request")
	// ErrEscapes says that the name leads out of the root, or might: it holds "..", or one of its elements is a symbolic
	// link (then the error matches unix.ELOOP, too). Links are not followed wherever they lead.
	ErrEscapes = errors.New("leads out of the directory, or is a symbolic link")
	// ErrDangling says that a symbolic link, which may be followed, leads to what does not exist: nothing is made there. The error
	// matches fs.ErrNotExist, too.
	ErrDangling = errors.New("a symbolic link leads to what does not exist")
	// ErrRaced says that another process kept changing what the name leads to, and that the call stopped after many tries.
	// It may work later.
	ErrRaced = errors.New("a workload or another process keeps changing it")
	// ErrMounted says that something is mounted at the name or inside it. It was not removed.
	ErrMounted = errors.New("something is mounted there")
)

// Error is the error of an operation beneath a root. Its text holds the path of the root, which may tell a stranger how
// the host is laid out; see [Public].
type Error struct {
	// Op is what was to be done, such as "open" or "prepare sub-path".
	Op string
	// Root is the absolute path of the root, as the host sees it.
	Root string
	// Name is what it was to be done to, relative to Root and as it was given.
	Name string
	// Err is the cause.
	Err error
}

// Error names operation, root, name and cause.
func (e *Error) Error() string {
	return fmt.Sprintf("%s %q beneath %q: %v", e.Op, e.Name, e.Root, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindError says that what is at the name is not of a kind that was asked for. It was not opened.
type KindError struct {
	// Want are the kinds that were asked for.
	Want Kind
	// Got is the kind of what is there.
	Got Kind
}

// Unwrap returns the errno that the kernel has for it: ENOTDIR where a directory was wanted, EISDIR where one was found, and
// else nil.
func (e *KindError) Unwrap() error {
	if e.Want&Directory != 0 {
		return syscall.ENOTDIR
	}
	if e.Got == Directory {
		return syscall.EISDIR
	}
	return nil
}

// Error names both.
func (e *KindError) Error() string { return fmt.Sprintf("it is a %v, and not a %v", e.Got, e.Want) }

// public are the words for the owner of a pod, the most telling first.
var public = []struct {
	is   error
	text string
}{
	{ErrInvalid, "the path is not valid: it must be relative and must not contain \"..\""},
	{ErrEscapes, "the path leads out of the volume, or a symbolic link is in it"},
	{ErrDangling, "a symbolic link in the path leads to what does not exist: make that first, or remove the link"},
	{ErrRaced, "the path keeps changing"},
	{ErrMounted, "something is mounted there"},
	{mount.ErrForeign, "something else is mounted where it is needed"},
	{mount.ErrStuck, "the volume does not answer"},
	{context.DeadlineExceeded, "the volume did not answer in time"},
	{context.Canceled, "it was cancelled"},
	{fs.ErrNotExist, "the path does not exist"},
	{fs.ErrPermission, "permission was denied"},
}

// Public returns a text of err that may be shown to the owner of a pod: it holds what that owner has written, and of the
// host neither a path nor anything else. It returns "" for nil.
func Public(err error) string {
	if err == nil {
		return ""
	}
	var at *Error
	if !errors.As(err, &at) {
		return publicCause(err)
	}
	return fmt.Sprintf("%s %q: %s", at.Op, at.Name, publicCause(at.Err))
}

func publicCause(err error) string {
	var kind *KindError
	if errors.As(err, &kind) {
		return kind.Error()
	}
	for _, p := range public {
		if errors.Is(err, p.is) {
			return p.text
		}
	}
	return publicErrno(err)
}

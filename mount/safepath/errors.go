package safepath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// The sentinels of this package. Match them with errors.Is. Errors also match the errno of a failed system call, and
// mount.ErrUncertain, mount.ErrTransient, mount.ErrStuck and mount.ErrForeign with their meaning there.
var (
	// ErrInvalid says that a name or a request is malformed. Nothing was touched.
	ErrInvalid = errors.New("invalid name or request")
	// ErrEscapes says that the name leads out of the root, or might: it contains "..", or one of its elements is a symbolic link.
	// For a link the error matches unix.ELOOP, too. Links are never followed, wherever they lead.
	ErrEscapes = errors.New("leads out of the directory, or is a symbolic link")
	// ErrDangling says that a symbolic link, which may be followed, leads to a missing file: nothing is made there. The error matches
	// fs.ErrNotExist, too.
	ErrDangling = errors.New("a symbolic link leads to what does not exist")
	// ErrRaced says that another process kept changing the path, and that the call stopped after many tries. It may work later.
	ErrRaced = errors.New("a workload or another process keeps changing it")
	// ErrMounted says that something is mounted at the name or inside it. It was not removed.
	ErrMounted = errors.New("something is mounted there")
)

// Error is the error of an operation beneath a root. Its text contains the path of the root on the host. Show users the text of [Public]
// instead.
type Error struct {
	// Op is the operation, such as "open" or "prepare sub-path".
	Op string
	// Root is the absolute path of the root, as the host sees it.
	Root string
	// Name is the name that the caller gave, relative to Root.
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

// KindError says that the file is not of a kind that the caller accepts. The file was not opened.
type KindError struct {
	// Want are the kinds that the caller accepts.
	Want Kind
	// Got is the kind of the file.
	Got Kind
}

// Unwrap returns the kernel's errno: ENOTDIR if only a directory is accepted, EISDIR if the file is a directory, and nil otherwise.
func (e *KindError) Unwrap() error {
	if e.Want&Directory != 0 {
		return syscall.ENOTDIR
	}
	if e.Got == Directory {
		return syscall.EISDIR
	}
	return nil
}

// Error names both kinds.
func (e *KindError) Error() string { return fmt.Sprintf("it is a %v, and not a %v", e.Got, e.Want) }

// public has the texts for the owner of a pod, the most specific first.
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

// Public returns a text of err for the owner of a pod. It contains only what the owner has written, and no path or other fact about the
// host. It returns "" for nil.
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

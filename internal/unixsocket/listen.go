// Package unixsocket makes the sockets of the servers of bridges.
//
// A socket has its permissions before a process can connect. It replaces the socket of a killed process. It is never made in a
// directory in which other users could replace it.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/internal/outcome"
)

// ErrInUse says that another process accepts connections at the path of the socket.
var ErrInUse = errors.New("another process serves the socket")

// ErrUnsafe says that the path of a socket cannot be used safely.
var ErrUnsafe = errors.New("not a safe place for a socket")

// privateSuffix ends the name of the directory in which the socket is made.
const privateSuffix = ".new"

// MaxPath is the length in bytes of the longest path. It is that of sockaddr_un without the suffix of the private directory.
const MaxPath = 107 - len(privateSuffix+"/s")

// Listener is a listener on a socket. Close does not remove the socket; [Listener.Remove] does.
type Listener struct {
	*net.UnixListener

	path string
	made fs.FileInfo
}

// Listen listens at an absolute path. It makes the directory of the socket, and those above it, if they are missing. The directory
// must belong to this user or root, and other users must not be able to write to it; otherwise the error matches [ErrUnsafe]. If
// another process accepts connections at the path, the error matches [ErrInUse].
func Listen(ctx context.Context, path string, mode fs.FileMode) (*Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // others may connect, if the socket lets them
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	if err := checkFree(ctx, path); err != nil {
		return nil, err
	}
	early, err := privateDir(path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(early, "s"), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	made, err := publish(filepath.Join(early, "s"), path, mode)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", errors.Join(err, listener.Close()))
	}
	return &Listener{UnixListener: listener, path: path, made: made}, os.Remove(early)
}

// privateDir makes an empty directory beside the socket that no other user can read. It replaces one that a killed process has left.
func privateDir(path string) (string, error) {
	dir := path + privateSuffix
	if err := os.Remove(filepath.Join(dir, "s")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o700)
}

// publish gives the socket its permissions, and then renames it to its path.
func publish(early, path string, mode fs.FileMode) (fs.FileInfo, error) {
	if err := os.Chmod(early, mode); err != nil {
		return nil, err
	}
	made, err := os.Lstat(early)
	if err != nil {
		return nil, err
	}
	return made, os.Rename(early, path)
}

// checkFree refuses a directory in which other users could put a socket, a path with a file that is not a socket, and a socket at
// which another process accepts connections.
func checkFree(ctx context.Context, path string) error {
	if err := CheckDir(filepath.Dir(path)); err != nil {
		return err
	}
	there, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case there.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%q exists and is not a socket: remove it if you know what it is: %w", path, ErrUnsafe)
	}
	var dialer net.Dialer
	if connection, err := dialer.DialContext(ctx, "unix", path); err == nil {
		return errors.Join(fmt.Errorf("%q: %w", path, ErrInUse), connection.Close())
	}
	return nil // a process that has ended left it
}

// CheckDir refuses a directory in which other users could put a socket: the error matches [ErrUnsafe]. If the directory is missing,
// the error matches outcome.ErrTransient, because the server may still make it.
func CheckDir(path string) error {
	dir, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("directory of the socket: %w: %w", outcome.ErrTransient, err)
	}
	if err != nil {
		return fmt.Errorf("directory of the socket: %w", err)
	}
	if dir.Mode()&0o022 != 0 || !ownedByRootOrUs(dir) {
		return fmt.Errorf("others can write to the directory of the socket %q: give it mode 0755 or less, and to root or this user: %w",
			path, ErrUnsafe)
	}
	return nil
}

// Remove removes the socket, unless another server has replaced it.
func (l *Listener) Remove() error {
	there, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !os.SameFile(there, l.made)) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(l.path)
}

package dockerserver

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/unixsocket"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

const (
	// defaultCallTimeout is shorter than the two minutes for which Docker waits, so that it shows the cause and not its own timeout.
	defaultCallTimeout = 110 * time.Second
	// defaultGrace is what Docker's and systemd's own time for an end leaves room for.
	defaultGrace = 20 * time.Second
	// defaultVolumeSize is 1 GiB.
	defaultVolumeSize = int64(1) << 30
)

// Options configures a [Server]. What is not said to be required may be left out.
type Options struct {
	// Socket is the absolute path of the unix socket. Required. Docker looks for it in /run/docker/plugins, and calls the driver
	// by its name without ".sock". Only this user and root may write to its directory, which is made when it is missing. What a
	// killed server has left is replaced.
	Socket string
	// SocketMode are the permissions of the socket, 0600 by default. It must not be writable for all.
	SocketMode fs.FileMode
	// RootDir is the absolute directory below which the plugin works and volumes are mounted, as [volume.HostOptions] has it.
	// Required. Docker must see its mounts: the server runs in the mount namespace of Docker's daemon, or RootDir lies on a mount
	// that is shared with it.
	RootDir string
	// StateDir is the absolute directory of what must survive a reboot: which volumes there are, and what is attached. Required.
	StateDir string
	// RuntimeDir is the absolute directory of what ends with the boot: what is mounted, and for whom. It should be on a tmpfs.
	// Required.
	RuntimeDir string
	// NodeName is the name of this machine. Required: a plugin has it in its [volume.VolumeHost].
	NodeName types.NodeName
	// Parameters are those of every volume, as a storage class has them. An option of docker volume create -o goes before the
	// parameter of the same name.
	Parameters map[string]string
	// DefaultVolumeSize is the size in bytes of a volume for which no size is given; zero means 1 GiB.
	DefaultVolumeSize int64
	// Source returns the volume that a name and the options of docker volume create -o stand for. It is for plugins that do not
	// provision, and is required for them; with it no volume is provisioned or deleted. It must refuse options that it does not
	// know. It must not change options, does no I/O, and may be called from several goroutines at once. The spec is a
	// PersistentVolume, which is renamed, or a volume of a pod.
	Source func(name string, options map[string]string) (*volume.Spec, error)
	// Mounter is the mounter that the plugin uses. Nil: one of the server's own.
	Mounter *mount.Mounter
	// CallTimeout bounds every call; zero means 110 seconds.
	CallTimeout time.Duration
	// Grace is how long calls may go on after the context of [Server.Run] has ended; zero means 20 seconds.
	Grace time.Duration
	// Logger gets one line for each call that changes something or fails. Nil discards.
	Logger *slog.Logger
}

// withDefaults fills in what was left out.
func (o Options) withDefaults() Options {
	if o.SocketMode == 0 {
		o.SocketMode = 0o600
	}
	if o.DefaultVolumeSize == 0 {
		o.DefaultVolumeSize = defaultVolumeSize
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = defaultCallTimeout
	}
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Mounter == nil {
		o.Mounter = mount.New(mount.Options{Logger: o.Logger})
	}
	return o
}

func (o Options) check() error {
	var errs []error
	for _, p := range []struct{ name, path string }{
		{"Socket", o.Socket}, {"StateDir", o.StateDir}, {"RuntimeDir", o.RuntimeDir}, {"RootDir", o.RootDir},
	} {
		if !filepath.IsAbs(p.path) || filepath.Clean(p.path) != p.path {
			errs = append(errs, fmt.Errorf("%s %q: give a clean absolute path: %w", p.name, p.path, volume.ErrInvalid))
		}
	}
	if len(o.Socket) > unixsocket.MaxPath {
		errs = append(errs, fmt.Errorf("the path %q is too long for a socket: give one of at most %d bytes: %w",
			o.Socket, unixsocket.MaxPath, volume.ErrInvalid))
	}
	if o.SocketMode&^0o777 != 0 || o.SocketMode&0o002 != 0 {
		errs = append(errs, fmt.Errorf("SocketMode %v: give permissions that do not let everybody write: %w", o.SocketMode, volume.ErrInvalid))
	}
	if o.RuntimeDir == o.StateDir {
		errs = append(errs, fmt.Errorf("RuntimeDir and StateDir are both %q: give each its own: %w", o.StateDir, volume.ErrInvalid))
	}
	if o.NodeName == "" {
		errs = append(errs, fmt.Errorf("NodeName is empty: give the name of this machine: %w", volume.ErrInvalid))
	}
	if o.DefaultVolumeSize < 0 {
		errs = append(errs, fmt.Errorf("DefaultVolumeSize %d: give a size in bytes: %w", o.DefaultVolumeSize, volume.ErrInvalid))
	}
	return errors.Join(errs...)
}

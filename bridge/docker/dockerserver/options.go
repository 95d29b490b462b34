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
	// defaultGrace is shorter than the stop timeouts of Docker and systemd.
	defaultGrace = 20 * time.Second
	// defaultVolumeSize is 1 GiB.
	defaultVolumeSize = int64(1) << 30
)

// Options configures a [Server]. Fields that are not marked as required may be empty.
type Options struct {
	// Socket is the absolute path of the unix socket. Required. Docker looks for it in /run/docker/plugins, and names
	// the driver after it, without ".sock". Only this user and root may write to its directory, which the server makes
	// if it is missing. The server replaces the socket of a killed server.
	Socket string
	// SocketMode are the permissions of the socket, 0600 by default. They must not let all users write.
	SocketMode fs.FileMode
	// RootDir is the absolute directory below which the plugin works and volumes are mounted, see [volume.HostOptions].
	// Required. Docker must see its mounts: run the server in the mount namespace of dockerd, or put RootDir on a mount
	// that it shares with dockerd.
	RootDir string
	// StateDir is the absolute directory of the records that must survive a reboot: the volumes and their attachments.
	// Required.
	StateDir string
	// RuntimeDir is the absolute directory of the records that end with the boot: mounts, and ids. It should be on a
	// tmpfs. Required.
	RuntimeDir string
	// NodeName is the name of this machine. Required: plugins read it from their [volume.VolumeHost].
	NodeName types.NodeName
	// Parameters are class parameters of every volume. An option of docker volume create -o overrides the parameter of
	// the same name.
	Parameters map[string]string
	// DefaultVolumeSize is the size in bytes of a volume that is created without a size; zero means 1 GiB.
	DefaultVolumeSize int64
	// Source returns the volume for a name and the options of docker volume create -o. It is for plugins that do not
	// provision, and required for them. With Source the server provisions and deletes no volume. Source must refuse
	// unknown options, must not change options, must do no I/O, and may be called from several goroutines at once. The
	// spec is a PersistentVolume, which the server renames, or a volume of a pod.
	Source func(name string, options map[string]string) (*volume.Spec, error)
	// Mounter is the mounter that the plugin uses. If it is nil, the server makes its own.
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
		errs = append(errs, fmt.Errorf("SocketMode %v: give permissions that do not let all users write: %w", o.SocketMode, volume.ErrInvalid))
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

package csiserver

import (
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/internal/unixsocket"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// AttachMode says where volumes are attached, if the plugin attaches at all.
type AttachMode uint8

const (
	// AttachByController attaches in ControllerPublishVolume: for storage that every controller can reach.
	AttachByController AttachMode = iota
	// AttachOnNode attaches in NodeStageVolume: for storage of the node itself, such as images with loop devices.
	AttachOnNode
)

// Services says which services a server has, beside Identity.
type Services uint8

const (
	// AllServices is both.
	AllServices Services = iota
	// ControllerOnly is for the one process that makes, attaches and expands volumes for all nodes.
	ControllerOnly
	// NodeOnly is for the processes beside it, one on each node.
	NodeOnly
)

const (
	// defaultCallTimeout is enough for a plugin that formats or copies.
	defaultCallTimeout = 5 * time.Minute
	// defaultGrace is shorter than what Kubernetes waits before it kills (30 s).
	defaultGrace = 20 * time.Second
	// defaultVolumeSize is 1 GiB.
	defaultVolumeSize = int64(1) << 30

	defaultSocketMode = fs.FileMode(0o600)
)

// Options configures a [Server]. What is not said to be required may be left out.
type Options struct {
	// Socket is the absolute path of the unix socket. Required. Others than this user and root must not be able to write to its
	// directory, which is made when it is missing. What a killed server has left is replaced.
	Socket string
	// SocketMode are the permissions of the socket, 0600 by default. Who can connect can mount: it must not be writable for
	// all.
	SocketMode fs.FileMode
	// RootDir is the absolute directory below which the plugin works, as [volume.HostOptions] has it. Required.
	RootDir string
	// StateDir is the absolute directory of what must survive a reboot: which volumes there are, and where they are attached.
	// Required. Each server has its own.
	StateDir string
	// RuntimeDir is the absolute directory of what does not survive a reboot: what is staged and published. It should be on a
	// tmpfs. Required for a server with the node service.
	RuntimeDir string
	// NodeName is the name and the id of this node. Required: a plugin has it in its [volume.VolumeHost].
	NodeName types.NodeName
	// Version is what GetPluginInfo says, "0" by default.
	Version string
	// Services says which services there are.
	Services Services
	// Attach says where volumes are attached.
	Attach AttachMode
	// Topology is where this node is, by segment, such as "topology.example.com/node": "node-1". With it the volumes that are
	// made here are of use only there: a request that does not allow it is refused. Empty means that volumes can be used
	// anywhere, as far as the plugin says nothing else.
	Topology map[string]string
	// DefaultVolumeSize is the size in bytes of a volume for which none is asked; zero means 1 GiB.
	DefaultVolumeSize int64
	// CallTimeout bounds every call, also where the caller waits longer; zero means five minutes.
	CallTimeout time.Duration
	// Grace is how long calls may go on after Run's context has ended; zero means 20 seconds.
	Grace time.Duration
	// Mounter makes the binds at target paths; nil means a mount.Mounter of the server's own.
	Mounter mount.Interface
	// Logger gets one line for each call that changes something or fails. Nil discards.
	Logger *slog.Logger
}

// withDefaults fills in what was left out.
func (o Options) withDefaults() Options {
	if o.SocketMode == 0 {
		o.SocketMode = defaultSocketMode
	}
	if o.Version == "" {
		o.Version = "0"
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

func (o Options) hasController() bool { return o.Services != NodeOnly }
func (o Options) hasNode() bool       { return o.Services != ControllerOnly }

func (o Options) check() error {
	paths := []struct{ name, path string }{{"Socket", o.Socket}, {"StateDir", o.StateDir}}
	if o.hasNode() {
		paths = append(paths, struct{ name, path string }{"RuntimeDir", o.RuntimeDir})
	}
	for _, p := range paths {
		if !filepath.IsAbs(p.path) || filepath.Clean(p.path) != p.path {
			return fmt.Errorf("%s %q: give a clean absolute path: %w", p.name, p.path, volume.ErrInvalid)
		}
	}
	switch {
	case len(o.Socket) > unixsocket.MaxPath:
		return fmt.Errorf("the path %q is too long for a socket: give one of at most %d bytes: %w", o.Socket, unixsocket.MaxPath, volume.ErrInvalid)
	case o.SocketMode&^0o777 != 0 || o.SocketMode&0o002 != 0:
		return fmt.Errorf("SocketMode %v: give permissions that do not let all users write: %w", o.SocketMode, volume.ErrInvalid)
	case o.RuntimeDir == o.StateDir:
		return fmt.Errorf("RuntimeDir and StateDir are both %q: give each its own: %w", o.StateDir, volume.ErrInvalid)
	case o.Services > NodeOnly || o.Attach > AttachOnNode:
		return fmt.Errorf("Services %d, Attach %d: use the constants: %w", o.Services, o.Attach, volume.ErrInvalid)
	case o.Attach == AttachOnNode && !o.hasNode():
		return fmt.Errorf("AttachOnNode needs the node service: %w", volume.ErrInvalid)
	}
	return csispec.CheckID("NodeName", string(o.NodeName), csispec.MaxNodeID)
}

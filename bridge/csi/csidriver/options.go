package csidriver

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/stats"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// Services is the set of a driver's services that a plugin uses.
type Services uint8

const (
	// Controller is the service that creates and attaches volumes. Use it in the process of the controllers.
	Controller Services = 1 << iota
	// Node is the service that stages and publishes volumes. Use it on each node.
	Node
	// AllServices is both, for a program that has the controllers and the manager of a node.
	AllServices = Controller | Node
)

// Has reports whether all of want are in the set.
func (s Services) Has(want Services) bool { return s&want == want }

// Options selects a driver and configures its plugin.
type Options struct {
	// Socket is the absolute path of the driver's unix socket. Required.
	Socket string
	// Driver is the driver's name. Required: the driver must report this name. [Identify] reads it from a socket. It
	// must contain a dot, because [volume.PluginNameOfDriver] makes the plugin's name from it.
	Driver string
	// Services are the services that the socket has; 0 means all.
	Services Services
	// Object is the driver's CSIDriver; nil if there is none. A plugin without the controller service needs one: its
	// attachRequired, true by default, says whether volumes are attached. The plugin does not change the object.
	Object *storagev1.CSIDriver
	// Objects reads the driver's CSIDriver, at each new connection and in [Driver.Reread]. [StoredObjects] is one. It
	// replaces Object.
	Objects Objects
	// Tokens returns the tokens of service accounts that a CSIDriver requests, at each NodePublishVolume. If it is nil,
	// the plugin refuses volumes of such a driver.
	Tokens Tokens
	// Secrets returns the secrets that volumes and classes refer to, at each call. If it is nil, the plugin refuses
	// volumes with secrets.
	Secrets volume.SecretGetter
	// SnapshotSecrets returns the secrets for looking up, listing and deleting snapshots. [SnapshotClassSecrets] is
	// one. If it is nil, these calls have no secrets.
	SnapshotSecrets SnapshotSecrets
	// Volumes finds the secret of a volume that is detached before this process has attached or verified it. [StoredVolumes] is
	// one. If it is nil, such a call has no secret.
	Volumes Volumes
	// Nodes returns what the driver has reported about other nodes. [StoredNodes] is one. If it is nil, the plugin
	// knows only this node, and only if it uses the node service.
	Nodes Nodes
	// Mounter reads mounts and removes those that the driver leaves; nil means the kernel's.
	Mounter mount.Interface
	// Logger logs each call without its secrets; nil discards.
	Logger *slog.Logger
	// Stats handles each call with the context of the plugin's call. It gets no requests and answers, because they may
	// hold secrets. With the client handler of otelgrpc, a call is a child span of its operation, and the driver can
	// continue the trace. Nil means no handler.
	Stats stats.Handler

	// ConnectTimeout bounds the requests for the driver's name and capabilities; 0 means 15 s.
	ConnectTimeout time.Duration
	// CallTimeout bounds a call whose context has no earlier deadline; 0 means 2 minutes.
	CallTimeout time.Duration
	// Grace is how long a call that changes something may go on after its context has ended; 0 means 1 s. A driver that answers in that
	// time says whether the call had its effect. Afterwards the call is cancelled and uncertain.
	Grace time.Duration
	// MaxMessage is the largest size of a request or an answer, in bytes; 0 means 4 MiB.
	MaxMessage int
	// MaxString is the largest length of an id or another string in an answer, in bytes; 0 means 128, the limit of the
	// specification. Some drivers have longer ids.
	MaxString int
	// Owners are further users that may own the socket and the directories above it, besides root and the process's own
	// user. In a user namespace, directories of the outer root belong to the overflow user, 65534: name it here.
	Owners []uint32
}

const (
	defaultConnectTimeout = 15 * time.Second
	defaultCallTimeout    = 2 * time.Minute
	defaultGrace          = time.Second // It is less than that of the executor, and than the contract allows (Q1).
	defaultMaxMessage     = 4 << 20
)

// complete fills in the defaults and checks the options.
func (o Options) complete() (Options, error) {
	o.Services = cmp.Or(o.Services, AllServices)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, defaultConnectTimeout)
	o.CallTimeout = cmp.Or(o.CallTimeout, defaultCallTimeout)
	o.Grace = cmp.Or(o.Grace, defaultGrace)
	o.MaxMessage = cmp.Or(o.MaxMessage, defaultMaxMessage)
	o.MaxString = cmp.Or(o.MaxString, csispec.MaxString)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Mounter == nil {
		o.Mounter = mount.New(mount.Options{})
	}
	if !filepath.IsAbs(o.Socket) {
		return o, fmt.Errorf("socket %q of a CSI driver: give an absolute path: %w", o.Socket, volume.ErrInvalid)
	}
	if o.Object != nil && o.Driver != "" && o.Object.Name != o.Driver {
		return o, fmt.Errorf("the CSIDriver is that of %q and not of %q: %w", o.Object.Name, o.Driver, volume.ErrInvalid)
	}
	if o.Object != nil && o.Objects != nil {
		return o, fmt.Errorf("driver %q: give Object or Objects, not both: %w", o.Driver, volume.ErrInvalid)
	}
	return o, nil
}

// checkPluginName returns an error if a driver of that name cannot be a plugin.
func checkPluginName(driver string) error {
	if err := csispec.CheckDriverName(driver); err != nil {
		return err
	}
	if !strings.Contains(driver, ".") {
		return fmt.Errorf("driver name %q has no dot, so that there is no plugin name for it: start the driver with a name such as %q: %w",
			driver, driver+".csi.example.com", volume.ErrInvalid)
	}
	return nil
}

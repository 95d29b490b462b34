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

// Services says which services of a driver a plugin uses.
type Services uint8

const (
	// Controller is the service that makes volumes and attaches them: for the process with the controllers.
	Controller Services = 1 << iota
	// Node is the service that stages and publishes volumes: for a node.
	Node
	// AllServices is both, for a program that is both.
	AllServices = Controller | Node
)

// Has reports whether all of want are in the set.
func (s Services) Has(want Services) bool { return s&want == want }

// Options says which driver a plugin uses, and how.
type Options struct {
	// Socket is the absolute path of the driver's unix socket. Required.
	Socket string
	// Driver is the driver's name, which it must answer with. Required: [Identify] asks a socket for it. It must have a dot,
	// since the plugin is called by [volume.PluginNameOfDriver] of it.
	Driver string
	// Services are those that answer on the socket; 0 means all.
	Services Services
	// Object is the driver's CSIDriver; nil where there is none. It must say attachRequired where a node's plugin cannot ask the
	// controller service. It is not changed.
	Object *storagev1.CSIDriver
	// Objects is what the driver's CSIDriver is read from, such as [StoredObjects], at each new connection and by [Driver.Reread]. It
	// stands in the place of Object.
	Objects Objects
	// Tokens gets the tokens of service accounts that a CSIDriver asks for, at each publication. Nil means that volumes of such a driver
	// are refused.
	Tokens Tokens
	// Secrets gets the secrets that volumes and classes refer to, at each call. Nil means that volumes with secrets are refused.
	Secrets volume.SecretGetter
	// SnapshotSecrets knows the secrets of snapshots that are looked up, listed and deleted, such as [SnapshotClassSecrets]. Nil means
	// that such calls have none.
	SnapshotSecrets SnapshotSecrets
	// Nodes knows what the driver has said of other nodes, such as [StoredNodes]. Nil means that only this node is known, of a
	// driver whose node service is used.
	Nodes Nodes
	// Mounter looks at mounts, and removes what drivers leave; nil means the kernel's.
	Mounter mount.Interface
	// Logger is told of each call, without secrets; nil discards.
	Logger *slog.Logger
	// Stats is told of each call, with the context of the plugin's call, but without requests and answers, which may hold secrets. With
	// the client handler of otelgrpc a call is a span below that of the operation, and the driver can continue it. Nil tells none.
	Stats stats.Handler

	// ConnectTimeout is how long a driver may take to say who it is and what it can do; 0 means 15 s.
	ConnectTimeout time.Duration
	// CallTimeout bounds a call whose context has no earlier deadline; 0 means 2 minutes.
	CallTimeout time.Duration
	// Grace is how long a call that changes something may go on after its context has ended; 0 means 1 s. A driver that answers in that
	// time says whether the call had its effect. Afterwards the call is cancelled and uncertain.
	Grace time.Duration
	// MaxMessage is how large a request or an answer may be, in bytes; 0 means 4 MiB.
	MaxMessage int
	// MaxString is how long an id or another string of an answer may be, in bytes; 0 means 128, which is what the
	// specification allows. Some drivers make longer ids.
	MaxString int
	// Owners are users that may own the socket and the directories above it, beside root and the process's own. In a user
	// namespace directories of the root outside belong to the overflow user, 65534, which has to be named here.
	Owners []uint32
}

const (
	defaultConnectTimeout = 15 * time.Second
	defaultCallTimeout    = 2 * time.Minute
	defaultGrace          = time.Second // It is less than that of the executor, and than the contract allows (Q1).
	defaultMaxMessage     = 4 << 20
)

// complete returns the options with the defaults, checked.
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

// checkPluginName reports whether a driver of that name can be a plugin.
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

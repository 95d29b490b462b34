package safepath

import (
	"context"
	"fmt"
	"slices"

	"github.com/volumekit/volumekit/mount"
)

// The ways in which a bind and what is mounted in the volume tell each other of later mounts.
const (
	// Private: nothing is told. It is what "" means, and None in Kubernetes.
	Private = "private"
	// Slave: what is mounted beneath the source later appears in the bind, if the source's own mount is shared. It is
	// HostToContainer in Kubernetes.
	Slave = "slave"
	// Shared: and the other way round. It is Bidirectional in Kubernetes.
	Shared = "shared"
)

// BindOptions says what a bind is like. The zero value is a private one with the options of the mount that the source
// lies on.
type BindOptions struct {
	// Kinds are the kinds that may be bound. Zero is Directory|RegularFile.
	Kinds Kind
	// ReadOnly makes the bind read-only from its first instant.
	ReadOnly bool
	// Recursive takes the mounts beneath the source along; they become read-only, too.
	Recursive bool
	// Propagation is Private, Slave or Shared; empty is Private.
	Propagation string
}

// check returns the options with defaults in place of zeros.
func (o BindOptions) check() (BindOptions, error) {
	if o.Kinds == 0 {
		o.Kinds = Directory | RegularFile
	}
	if o.Propagation == "" {
		o.Propagation = Private
	}
	if !slices.Contains([]string{Private, Slave, Shared}, o.Propagation) {
		return o, fmt.Errorf("propagation %q: %w", o.Propagation, ErrInvalid)
	}
	return o, nil
}

// request is the request to mount the source at target.
func (o BindOptions) request(source, target string) mount.Request {
	options := []string{"bind"}
	propagation := o.Propagation
	if o.Recursive {
		options, propagation = []string{"rbind"}, "r"+propagation
	}
	if o.ReadOnly {
		options = append(options, "ro")
	}
	return mount.Request{Source: source, Target: target, Options: append(options, propagation)}
}

// Bind shows what is at name at the absolute host path target, by a bind of the root's mounter. Name is opened as by
// OpenPath, and what was opened is what is bound, whatever its name leads to meanwhile. The target is resolved by the
// mounter, which follows no link there and makes what is missing (see mount.Interface); an error is that of its Mount. To
// undo it unmount target.
func (r *Root) Bind(ctx context.Context, name, target string, options BindOptions) error {
	options, err := options.check()
	if err != nil {
		return r.wrap("bind", name, err)
	}
	_, err = do(ctx, r.to("bind", name), ignore, func(ctx context.Context, t *tree) (struct{}, error) {
		return struct{}{}, t.bind(ctx, name, target, r.mounter, options)
	})
	return err
}

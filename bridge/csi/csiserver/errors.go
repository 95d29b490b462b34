package csiserver

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// codeOf returns the code that says to the caller what the error says: above all whether the effect may be there. The
// specification makes CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE and ABORTED uncertain; a caller repeats or undoes such a call.
func codeOf(err error) codes.Code {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	if _, ok := errors.AsType[*volume.SnapshotSourceError](err); ok { // Also if an earlier call is uncertain: the name has to be another.
		return codes.AlreadyExists
	}
	if class := outcome.ClassOf(err); class == outcome.Uncertain || class == outcome.Transient {
		return codes.Unavailable
	}
	if known, ok := status.FromError(err); ok {
		return known.Code()
	}
	if _, ok := errors.AsType[*volume.DanglingAttachError](err); ok {
		return codes.FailedPrecondition
	}
	return codeOfSentinel(err)
}

// sentinelCodes are those of errors after which the effect is not there. The first that matches counts.
var sentinelCodes = []struct {
	is   error
	code codes.Code
}{
	{volume.ErrAttachLimit, codes.ResourceExhausted},
	{volume.ErrInUse, codes.FailedPrecondition},
	{volume.ErrFenced, codes.FailedPrecondition},
	{volume.ErrNotFound, codes.NotFound},
	{mount.ErrForeign, codes.FailedPrecondition},
	{volume.ErrInfeasible, codes.OutOfRange},
	{volume.ErrInvalid, codes.InvalidArgument},
	{volume.ErrUnsupported, codes.FailedPrecondition},
	{syscall.ENOSPC, codes.ResourceExhausted},
	{syscall.EDQUOT, codes.ResourceExhausted},
	{syscall.EBUSY, codes.FailedPrecondition},
}

func codeOfSentinel(err error) codes.Code {
	for _, row := range sentinelCodes {
		if errors.Is(err, row.is) {
			return row.code
		}
	}
	return codes.Internal
}

// refused reports whether an error says of itself that there is no effect, whatever an earlier attempt has done.
func refused(err error) bool {
	for _, is := range []error{volume.ErrInfeasible, volume.ErrInvalid, volume.ErrUnsupported, volume.ErrAttachLimit} {
		if errors.Is(err, is) {
			return !outcome.IsUncertain(err)
		}
	}
	return false
}

// answer is what the caller is told of an error: its code and its text, without secrets.
func answer(err error, secrets volume.Secrets) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if known, ok := err.(interface{ GRPCStatus() *status.Status }); ok { // not a wrapped one, whose text is not all
		text = known.GRPCStatus().Message()
	}
	return status.Error(codeOf(err), secrets.RedactText(text))
}

// hidden returns the values of a request that may be secrets beside those that the specification marks: those of mount flags.
func hidden(request proto.Message) volume.Secrets {
	var capabilities []*csi.VolumeCapability
	switch r := request.(type) {
	case interface {
		GetVolumeCapability() *csi.VolumeCapability
	}:
		capabilities = append(capabilities, r.GetVolumeCapability())
	case interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}:
		capabilities = r.GetVolumeCapabilities()
	}
	var values []string
	for _, c := range capabilities {
		for _, flag := range c.GetMount().GetMountFlags() {
			if _, value, found := strings.Cut(flag, "="); found {
				values = append(values, value)
			}
		}
	}
	return volume.NewSecrets(values...)
}

package csidriver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/volume"
)

// class is the class of a driver's error, or of a missing answer.
type class uint8

const (
	// uncertain: the effect may exist, or may still come. Every code without a row in the table has this class: the
	// specification gives it no meaning.
	uncertain class = iota
	// busy: another call for the volume is running. This call began nothing, and the effect of the other one is
	// unknown.
	busy
	// final: this call has ended without an effect.
	final
)

// String returns the class in lower case.
func (c class) String() string {
	return [...]string{"uncertain", "busy", "final"}[c]
}

// rule is one row of the specification's tables of errors.
type rule struct {
	method string // empty for every method
	code   codes.Code
	class  class
	is     error // the sentinel of the row's errors; nil for none
}

// rules are the complete tables of errors of the specification. Rows of a method come before those of all methods.
//
// RESOURCE_EXHAUSTED is uncertain although the specification has rows for it: gRPC also returns it for an answer that
// is too large, after the call has taken effect. INTERNAL and UNKNOWN have no row, and many drivers use them for every
// error.
//
// No refusal of CreateVolume matches [volume.ErrInfeasible], [volume.ErrInvalid] or [volume.ErrUnsupported]. Those say
// that no earlier attempt has created the volume, and a driver's answer to this attempt does not. The exception is a
// copy whose source the driver does not find (explainSource).
var rules = []rule{
	{"", codes.InvalidArgument, final, nil},               // a field is missing, or not supported
	{"", codes.PermissionDenied, final, nil},              // the identity in the secrets may not do this
	{"", codes.Aborted, busy, nil},                        // an operation is pending for the volume
	{"", codes.Unimplemented, final, nil},                 // the call is not implemented
	{"", codes.Unauthenticated, final, nil},               // the secrets are not valid
	{"", codes.Canceled, uncertain, nil},                  // gRPC: the caller cancelled
	{"", codes.DeadlineExceeded, uncertain, nil},          // gRPC: the caller's deadline has passed
	{"", codes.Unavailable, uncertain, nil},               // gRPC: the connection ended
	{"", codes.ResourceExhausted, uncertain, nil},         // gRPC: the message is too large
	{"Probe", codes.FailedPrecondition, final, nil},       // not healthy, or something is missing
	{"CreateVolume", codes.InvalidArgument, final, nil},   // the source cannot be used
	{"CreateVolume", codes.NotFound, final, nil},          // the source does not exist
	{"CreateVolume", codes.AlreadyExists, uncertain, nil}, // another volume has the name: an earlier attempt may have made it
	{"CreateVolume", codes.ResourceExhausted, uncertain, nil},
	{"CreateVolume", codes.OutOfRange, final, nil}, // the size is not possible
	{"DeleteVolume", codes.FailedPrecondition, final, volume.ErrInUse},
	{"ControllerPublishVolume", codes.NotFound, final, volume.ErrNotFound},        // no such volume, or no such node
	{"ControllerPublishVolume", codes.AlreadyExists, uncertain, nil},              // published in another way
	{"ControllerPublishVolume", codes.FailedPrecondition, final, volume.ErrInUse}, // published to another node
	{"ControllerPublishVolume", codes.ResourceExhausted, uncertain, volume.ErrAttachLimit},
	{"ControllerUnpublishVolume", codes.NotFound, uncertain, nil}, // it does not say that the volume is not published
	{"ValidateVolumeCapabilities", codes.NotFound, final, nil},
	{"ListVolumes", codes.Aborted, final, errStartAgain}, // the token is not valid
	{"ControllerListVolumeHealth", codes.Aborted, final, errStartAgain},
	{"ControllerGetVolumeHealth", codes.NotFound, final, nil},
	{"ControllerGetVolume", codes.NotFound, final, nil},
	{"ControllerModifyVolume", codes.InvalidArgument, final, volume.ErrInfeasible},
	{"ControllerModifyVolume", codes.NotFound, final, nil},
	{"CreateSnapshot", codes.AlreadyExists, uncertain, nil},
	{"CreateSnapshot", codes.Aborted, busy, nil},
	{"CreateSnapshot", codes.ResourceExhausted, uncertain, nil},
	{"DeleteSnapshot", codes.InvalidArgument, final, volume.ErrInfeasible}, // it is part of a group
	{"DeleteSnapshot", codes.FailedPrecondition, final, volume.ErrInUse},
	{"DeleteSnapshot", codes.Aborted, busy, nil},
	{"ListSnapshots", codes.Aborted, final, errStartAgain},
	{"GetSnapshot", codes.NotFound, final, volume.ErrNotFound},
	{"ControllerExpandVolume", codes.InvalidArgument, final, nil},
	{"ControllerExpandVolume", codes.NotFound, final, nil},
	{"ControllerExpandVolume", codes.FailedPrecondition, final, volume.ErrInUse},
	{"ControllerExpandVolume", codes.OutOfRange, final, volume.ErrInfeasible},
	{"NodeStageVolume", codes.NotFound, final, nil},
	{"NodeStageVolume", codes.AlreadyExists, uncertain, nil},    // staged in another way
	{"NodeStageVolume", codes.FailedPrecondition, final, nil},   // the volume cannot do that
	{"NodeUnstageVolume", codes.NotFound, uncertain, nil},       // it does not say that the volume is not staged
	{"NodePublishVolume", codes.NotFound, final, nil},           //
	{"NodePublishVolume", codes.AlreadyExists, uncertain, nil},  // published in another way
	{"NodePublishVolume", codes.FailedPrecondition, final, nil}, // the volume cannot do that, or is not staged
	{"NodeUnpublishVolume", codes.NotFound, uncertain, nil},     // it does not say that the volume is not published
	{"NodeGetVolumeStats", codes.NotFound, final, nil},
	{"NodeGetVolumeHealth", codes.NotFound, final, nil},
	{"NodeExpandVolume", codes.InvalidArgument, final, nil},
	{"NodeExpandVolume", codes.NotFound, final, nil},
	{"NodeExpandVolume", codes.FailedPrecondition, final, volume.ErrInUse},
	{"NodeExpandVolume", codes.OutOfRange, final, volume.ErrInfeasible},
	{"CreateVolumeGroupSnapshot", codes.AlreadyExists, uncertain, nil},
	{"CreateVolumeGroupSnapshot", codes.FailedPrecondition, final, nil},
	{"CreateVolumeGroupSnapshot", codes.Aborted, busy, nil},
	{"CreateVolumeGroupSnapshot", codes.ResourceExhausted, uncertain, nil},
	{"DeleteVolumeGroupSnapshot", codes.InvalidArgument, final, volume.ErrInvalid}, // the list of snapshots is another one
	{"DeleteVolumeGroupSnapshot", codes.FailedPrecondition, final, volume.ErrInUse},
	{"GetVolumeGroupSnapshot", codes.InvalidArgument, final, volume.ErrInvalid},
	{"GetVolumeGroupSnapshot", codes.NotFound, final, volume.ErrNotFound},
	{"GetMetadataAllocated", codes.InvalidArgument, final, nil},
	{"GetMetadataAllocated", codes.NotFound, final, nil},
	{"GetMetadataAllocated", codes.OutOfRange, final, nil},
	{"GetMetadataDelta", codes.InvalidArgument, final, nil},
	{"GetMetadataDelta", codes.NotFound, final, nil},
	{"GetMetadataDelta", codes.FailedPrecondition, final, nil},
	{"GetMetadataDelta", codes.OutOfRange, final, nil},
}

// errStartAgain says that a list has changed while it was read.
var errStartAgain = errors.New("the list has to be read from its beginning")

// ruleOf returns the row for an answer. Without one the answer is uncertain.
func ruleOf(method string, code codes.Code) rule {
	general := rule{method: method, code: code}
	for _, r := range rules {
		switch {
		case r.code != code:
		case r.method == method:
			return r
		case r.method == "":
			general = r
		}
	}
	return general
}

// CallError is a failed call of a driver. It matches [volume.ErrUncertain] unless the specification says that the
// answer means no effect. Its text has no secret of the request.
type CallError struct {
	// Driver is the driver's name.
	Driver string
	// Method is the call, such as "NodePublishVolume".
	Method string
	// Code is the code of the driver's answer, or gRPC's own.
	Code codes.Code
	// Message is the driver's message, without secrets and cut.
	Message string

	class  class
	causes []error
}

// GRPCStatus returns the status of the driver's answer, for a server that forwards it.
func (e *CallError) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// maxMessage is the largest kept length of a driver's message, in bytes.
const maxMessage = 512

// newCallError makes the error of a call that ended with err. secrets are the secrets of its request.
func newCallError(ctx context.Context, driver, method string, err error, secrets volume.Secrets) *CallError {
	answer, _ := status.FromError(err)
	row := ruleOf(method, answer.Code())
	e := &CallError{
		Driver: driver, Method: method, Code: answer.Code(),
		Message: cut(secrets.RedactText(strings.ToValidUTF8(answer.Message(), "?"))), class: row.class,
	}
	if row.is != nil {
		e.causes = append(e.causes, row.is)
	}
	if row.class != final {
		e.causes = append(e.causes, volume.ErrUncertain)
	}
	if ctx.Err() != nil {
		e.causes = append(e.causes, ctx.Err())
	}
	return e
}

func cut(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "…"
}

// Error names the driver and the call, and has the answer.
func (e *CallError) Error() string {
	text := fmt.Sprintf("driver %q: %s: %s", e.Driver, e.Method, e.Code)
	if e.Message != "" {
		text += fmt.Sprintf(": %q", e.Message)
	}
	if e.class == busy {
		text += " (the driver is still busy with an earlier call)"
	}
	return text
}

// Unwrap returns the sentinels that the error matches.
func (e *CallError) Unwrap() []error { return e.causes }

// isBusy reports whether the driver answered that another call for the volume is running.
func isBusy(err error) bool {
	var e *CallError
	return errors.As(err, &e) && e.class == busy
}

// isCode reports whether err is a driver's answer with that code.
func isCode(err error, code codes.Code) bool {
	var e *CallError
	return errors.As(err, &e) && e.Code == code
}

func isUnimplemented(err error) bool { return isCode(err, codes.Unimplemented) }

func isUncertain(err error) bool { return errors.Is(err, volume.ErrUncertain) }

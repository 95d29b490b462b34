// Package outcome says how a call that changes the world ended.
//
// A call ends in one of four classes. Done: the effect is there. Transient: nothing was started, a retry may work.
// Uncertain: the effect may be there, may still come, or may be there in part. Final: the call is over and the effect
// is not there. Kubernetes recognises its classes by a plain type assertion and so loses them when an error is wrapped;
// here every class survives any wrapping.
//
// The packages volume and mount export the sentinels of this package under their own names, so that both leaves speak
// of the same outcome without knowing each other.
package outcome

import (
	"errors"
)

// ErrUncertain matches (errors.Is) every error after which the effect of the call may or may not be there.
var ErrUncertain = errors.New("outcome is uncertain")

// ErrTransient matches (errors.Is) every error of a call that did not start and that may work when it is tried again.
var ErrTransient = errors.New("did not start, may work later")

// Class is how a call ended.
type Class uint8

// The four classes. The zero value is Done.
const (
	Done      Class = iota // the effect is there
	Transient              // nothing was started; retry
	Uncertain              // the effect may be there
	Final                  // over, and the effect is not there
)

// String returns the class in lower case: done, transient, uncertain or final.
func (c Class) String() string {
	switch c {
	case Done:
		return "done"
	case Transient:
		return "transient"
	case Uncertain:
		return "uncertain"
	case Final:
		return "final"
	}
	return "invalid"
}

// uncertain is the shape of an error that knows by itself whether the outcome is uncertain.
type uncertain interface{ Uncertain() bool }

// lost is the shape of an error whose call was left behind and may still be running.
type lost interface{ Done() <-chan struct{} }

// ClassOf returns the class of err. Uncertain wins over Transient where an error claims both, because forgetting an
// effect is worse than looking twice.
func ClassOf(err error) Class {
	switch {
	case err == nil:
		return Done
	case IsUncertain(err):
		return Uncertain
	case errors.Is(err, ErrTransient):
		return Transient
	default:
		return Final
	}
}

// IsUncertain reports whether the effect of the call that returned err may be there.
func IsUncertain(err error) bool {
	if errors.Is(err, ErrUncertain) {
		return true
	}
	var u uncertain
	return errors.As(err, &u) && u.Uncertain()
}

// DoneOf returns the channel that is closed when the call behind err has really ended, or nil when that call ended
// before err was returned.
func DoneOf(err error) <-chan struct{} {
	var l lost
	if !errors.As(err, &l) {
		return nil
	}
	return l.Done()
}

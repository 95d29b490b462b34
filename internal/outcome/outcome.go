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
	"iter"
	"slices"
)

// ErrUncertain matches (errors.Is) every error after which the effect of the call may or may not be there.
var ErrUncertain = errors.New("outcome is uncertain")

// ErrTransient matches (errors.Is) every error of a call that did not start and that may work when it is tried again.
var ErrTransient = errors.New("did not start, may work later")

// ErrNotFound matches (errors.Is) every error that says that an object does not exist: of a store, and of what gives objects
// to a plugin. Packages store and volume export it, so that plugins need not know the store.
var ErrNotFound = errors.New("not found")

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

// lost is the shape of an error whose call was abandoned and may still be running.
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

// IsUncertain reports whether the effect of the call that returned err may be there. One part of err that says so is
// enough, whatever the other parts say.
func IsUncertain(err error) bool {
	if errors.Is(err, ErrUncertain) {
		return true
	}
	for e := range tree(err) {
		if u, ok := e.(uncertain); ok && u.Uncertain() {
			return true
		}
	}
	return false
}

// DoneOf returns the channel that is closed when every call that err says was abandoned has really ended, or nil when
// all calls had ended before err was returned. Where err tells of several abandoned calls, a goroutine waits for them; it
// ends with the last.
func DoneOf(err error) <-chan struct{} {
	calls := abandonedCalls(err)
	switch len(calls) {
	case 0:
		return nil
	case 1:
		return calls[0]
	}
	all := make(chan struct{})
	go func() {
		defer close(all)
		for _, done := range calls {
			<-done
		}
	}()
	return all
}

// Running returns, for each call that err says was abandoned and that has not ended by now, the channel that is closed
// when it does.
func Running(err error) []<-chan struct{} { return slices.DeleteFunc(abandonedCalls(err), closed) }

func abandonedCalls(err error) []<-chan struct{} {
	var calls []<-chan struct{}
	for e := range tree(err) {
		if l, ok := e.(lost); ok {
			if done := l.Done(); done != nil && !slices.Contains(calls, done) {
				calls = append(calls, done)
			}
		}
	}
	return calls
}

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// tree yields err and everything that it wraps, parents first.
func tree(err error) iter.Seq[error] {
	return func(yield func(error) bool) { walk(err, yield) }
}

func walk(err error, yield func(error) bool) bool {
	if err == nil {
		return true
	}
	if !yield(err) {
		return false
	}
	switch e := err.(type) { //nolint:errorlint // This is the walk itself.
	case interface{ Unwrap() error }:
		return walk(e.Unwrap(), yield)
	case interface{ Unwrap() []error }:
		for _, wrapped := range e.Unwrap() {
			if !walk(wrapped, yield) {
				return false
			}
		}
	}
	return true
}

// Package outcome says how a call that changes the world ended.
//
// A call ends in one of four classes. Done: the effect is there. Transient: nothing was started, a retry may work.
// Uncertain: the effect may be there, may still come, or may be there in part. Final: the call has ended and the effect
// is not there. Kubernetes recognises its classes by a plain type assertion, and so loses them when an error is wrapped.
// Here every class survives any wrapping.
//
// The packages volume and mount export the errors of this package under their own names. So both have the same classes, and
// neither imports the other.
package outcome

import (
	"errors"
	"iter"
	"slices"
)

// ErrUncertain matches (errors.Is) every error of a call whose effect may or may not be there.
var ErrUncertain = errors.New("outcome is uncertain")

// ErrTransient matches (errors.Is) every error of a call that did not start and may succeed at a retry.
var ErrTransient = errors.New("did not start, may work later")

// ErrNotFound matches (errors.Is) every error that says that an object does not exist: errors of stores, and of the getters of
// plugins. Packages store and volume export it, so plugins need not import the store.
var ErrNotFound = errors.New("not found")

// ErrForeign is mount.ErrForeign: the mount at the path is not the expected one, and was not touched.
var ErrForeign = errors.New("mounted by another program")

// Class says how a call ended.
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

// uncertain is the method of an error that has the outcome itself.
type uncertain interface{ Uncertain() bool }

// lost is the method of an error whose call was abandoned and may still run.
type lost interface{ Done() <-chan struct{} }

// ClassOf returns the class of err. An error that matches both is Uncertain, not Transient: to forget an effect is worse than
// to check for it in vain.
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

// IsUncertain reports whether the effect of the call that returned err may be there. It may be if any part of err is uncertain.
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

// DoneOf returns a channel that closes when every abandoned call in err has returned. It returns nil if err has no abandoned
// call. If err has several, a goroutine waits for them. It ends with the last call.
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

// Running returns the channels of the abandoned calls in err that have not returned yet. Each closes when its call returns.
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

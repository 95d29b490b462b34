// Package watchdog abandons calls that do not return, such as a system call on a dead server, or a call of a plugin that
// ignores its context. A watched call costs no goroutine: it runs in the goroutine of its caller, and one timer watches all
// calls.
//
//	call := &watchdog.Call{Owner: o, Timeout: time.Minute, Grace: time.Second}
//	w.Begin(call)
//	err := call.Run(f)
//	if !w.End(call) {
//		return errAbandoned // the owner has said all that there is to say
//	}
//
// The time of a call ends with its timeout, or with the context of its [Watch]. If the call has not returned a grace later,
// the watchdog abandons it and calls the Abandoned method of its [Owner]. The owner then concludes, in another goroutine,
// what the caller no longer can. A call either returns in time or is abandoned, never both: [Watchdog.End] returns which.
package watchdog

// Package watchdog abandons calls that do not return, such as a system call on a dead server or a plugin that ignores its
// context. A call costs no goroutine: it runs in that of its caller, and one timer watches all of them.
//
//	call := &watchdog.Call{Owner: o, Timeout: time.Minute, Grace: time.Second}
//	w.Begin(call)
//	err := call.Run(f)
//	if !w.End(call) {
//		return errAbandoned // the owner has said all that there is to say
//	}
//
// A call ends its time with its timeout, or with the context of its [Watch]. When it has not returned a grace later, it is
// abandoned: its [Owner] is told, and concludes in another goroutine what the caller cannot conclude any more. Either the
// call returns in time or it is abandoned, never both: [Watchdog.End] tells its caller which.
package watchdog

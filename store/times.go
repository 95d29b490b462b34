package store

import (
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	secondsType = reflect.TypeFor[metav1.Time]()      // Never changed.
	microsType  = reflect.TypeFor[metav1.MicroTime]() // Likewise.
)

// trimTimes truncates the times in an object to the precision of their JSON form: seconds or microseconds. Otherwise a store on disk,
// or the watch of a store on a server, would return other times than it has accepted.
func trimTimes(obj any) { trimTimesIn(reflect.ValueOf(obj)) }

// trimTimesIn truncates the times in a value. It skips the values of maps: no kind has times there.
func trimTimesIn(value reflect.Value) {
	switch value.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			trimTimesIn(value.Elem())
		}
	case reflect.Struct:
		trimTimesInStruct(value)
	case reflect.Slice, reflect.Array:
		switch value.Type().Elem().Kind() {
		case reflect.Pointer, reflect.Struct:
		default:
			return
		}
		for i := range value.Len() {
			trimTimesIn(value.Index(i))
		}
	default:
	}
}

func trimTimesInStruct(value reflect.Value) {
	switch value.Type() {
	case secondsType:
		if at, ok := reflect.TypeAssert[*metav1.Time](value.Addr()); ok {
			at.Time = trimmed(at.Time, time.Second)
		}
		return
	case microsType:
		if at, ok := reflect.TypeAssert[*metav1.MicroTime](value.Addr()); ok {
			at.Time = trimmed(at.Time, time.Microsecond)
		}
		return
	}
	for i := range value.NumField() {
		if field := value.Field(i); field.CanInterface() { // Unexported fields are not stored.
			trimTimesIn(field)
		}
	}
}

// trimmed returns a time with the precision of its JSON form.
func trimmed(at time.Time, to time.Duration) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Truncate(to).Local()
}

// now returns the present time with the precision of its JSON form.
func now() metav1.Time { return metav1.NewTime(trimmed(time.Now(), time.Second)) }

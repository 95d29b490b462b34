package store

import (
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	secondsType = reflect.TypeFor[metav1.Time]()      // A constant, but for the language.
	microsType  = reflect.TypeFor[metav1.MicroTime]() // Likewise.
)

// trimTimes cuts the times in an object to what JSON says of them: seconds, or microseconds. A store that outlives its process
// would give back other times than it had accepted, and so would a watch of one that asks a server.
func trimTimes(obj any) { trimTimesIn(reflect.ValueOf(obj)) }

// trimTimesIn looks into everything but the values of maps, in which no kind has a time.
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
		if field := value.Field(i); field.CanInterface() { // Others are no part of what is stored.
			trimTimesIn(field)
		}
	}
}

// trimmed returns a time as it is read from JSON.
func trimmed(at time.Time, to time.Duration) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Truncate(to).Local()
}

// now is the time as it is read from JSON.
func now() metav1.Time { return metav1.NewTime(trimmed(time.Now(), time.Second)) }

package store

import (
	"fmt"
	"reflect"
	"unicode/utf8"
)

// checkText refuses an object with a string that is not UTF-8. JSON cannot hold such a string, so a store on disk would
// give back another one. The error matches [ErrInvalid] and names the field, not its value, which may be a secret.
func checkText(key Key, obj any) error {
	if field := invalidText(reflect.ValueOf(obj)); field != "" {
		return fmt.Errorf("%s: %s is no UTF-8: write it as bytes where the kind has a field for them: %w", key, field, ErrInvalid)
	}
	return nil
}

// text names the invalid string within its field.
const text = "text"

// invalidText returns where a value holds a string that is not UTF-8, map keys included, and an empty string if there is
// none. It ignores bytes, because JSON encodes them as text.
func invalidText(value reflect.Value) string {
	switch value.Kind() {
	case reflect.String:
		if !utf8.ValidString(value.String()) {
			return text
		}
	case reflect.Pointer, reflect.Interface:
		return invalidText(value.Elem())
	case reflect.Struct:
		return invalidField(value)
	case reflect.Slice, reflect.Array:
		return invalidElement(value)
	case reflect.Map:
		return invalidEntry(value)
	default:
	}
	return ""
}

func invalidField(value reflect.Value) string {
	for i := range value.NumField() {
		field := value.Field(i)
		if !field.CanInterface() {
			continue // An unexported field is not stored.
		}
		if found := invalidText(field); found != "" {
			return value.Type().Field(i).Name + ", " + found
		}
	}
	return ""
}

func invalidElement(value reflect.Value) string {
	switch value.Type().Elem().Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice, reflect.Array, reflect.Map:
	default:
		return ""
	}
	for i := range value.Len() {
		if found := invalidText(value.Index(i)); found != "" {
			return fmt.Sprintf("element %d, %s", i, found)
		}
	}
	return ""
}

func invalidEntry(value reflect.Value) string {
	for entries := value.MapRange(); entries.Next(); {
		if invalidText(entries.Key()) != "" {
			return fmt.Sprintf("key %.64q", entries.Key())
		}
		if found := invalidText(entries.Value()); found != "" {
			return fmt.Sprintf("key %.64q, %s", entries.Key(), found)
		}
	}
	return ""
}

package volumemanager

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestJSONTellsEveryError of all that Status and Stats return, as its text; and nothing where there is none.
func TestJSONTellsEveryError(t *testing.T) {
	cause := errors.New("the server does not answer")
	status := NodeStatus{
		Volumes: []VolumeStatus{{OuterName: "data", Err: cause, Conditions: []Condition{{Err: cause}}}, {OuterName: "well"}},
		Damaged: []DamagedRecord{{Path: "/run/x", Err: cause}}, Orphans: []Orphan{{Path: "/lib/y", Err: cause}},
		LostData: []LostData{{Volume: "plugin/z", Err: cause}},
	}
	for value, errs := range map[any]int{&status: 5, &VolumeStats{OuterName: "data", Err: cause, Conditions: []Condition{{Err: cause}}}: 2} {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		var read any
		require.NoError(t, json.Unmarshal(text, &read))
		assert.Equal(t, errs, count(read, cause.Error()), "%s", text)
		assert.NotContains(t, string(text), `"Err":{}`)
		assert.NotContains(t, string(text), `"Err":null`)
		assert.Contains(t, string(text), `"data"`, "the other fields are there")
	}
}

// count returns how often a text is a value of what was read from JSON.
func count(read any, text string) (n int) {
	switch v := reflect.ValueOf(read); v.Kind() {
	case reflect.Map:
		for _, key := range v.MapKeys() {
			n += count(v.MapIndex(key).Interface(), text)
		}
	case reflect.Slice:
		for i := range v.Len() {
			n += count(v.Index(i).Interface(), text)
		}
	case reflect.String:
		if v.String() == text {
			n = 1
		}
	default:
	}
	return n
}

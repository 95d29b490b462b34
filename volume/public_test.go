package volume

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const hush = "hush-7f3a"

// secretive are values of the types that hold what a user wrote, each with secrets wherever there is room.
func secretive() map[string]any {
	values := func() map[string]string { return map[string]string{"pwd": hush, "share": hush} }
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: values(), Labels: values()}}
	pv.Spec.MountOptions = []string{"pw=" + hush, hush}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "h", VolumeAttributes: values()}
	inline := &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: "example.com/x", Options: values()}}}
	git := &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{Repository: "https://u:" + hush + "@host/x"}}}
	persistent := NewSpecFromPersistentVolume(pv, true)
	driver, _ := persistent.Driver()
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "ns", Annotations: values()}}
	options := VolumeOptions{PVName: "pv", PVC: claim, Source: pv, Parameters: values(), MountOptions: pv.Spec.MountOptions}
	return map[string]any{
		"persistent": persistent, "inline": NewSpecFromVolume(inline), "url": NewSpecFromVolume(git), "value": *persistent, "empty": &Spec{},
		"driver": driver, "pointer to a driver": &driver, "options": options, "pointer to options": &options,
		"rebuilt": ReconstructedVolume{Spec: persistent},
	}
}

// verbs are all that fmt knows but %p and %w, which call no method and which vet refuses for these types.
const verbs = "vTtbcdoOqxXUeEfFgGs"

func TestWhatAUserWroteIsNeverPrinted(t *testing.T) {
	for name, value := range secretive() {
		for _, held := range []any{value, &value, []any{value}, map[string]any{"a": value}, struct{ Value any }{value}} {
			for _, verb := range verbs {
				for _, flags := range []string{"", "+", "#", " ", "0", "-20", "#+"} {
					text := fmt.Sprintf("%"+flags+string(verb), held)
					assert.NotContains(t, text, hush, "%s %%%s%c", name, flags, verb)
					assert.NotContains(t, text, fmt.Sprintf("%x", hush), "%s %%%s%c", name, flags, verb)
				}
			}
			encoded, err := json.Marshal(held)
			require.NoError(t, err, name)
			assert.NotContains(t, string(encoded), hush, name)
			var log strings.Builder
			for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
				slog.New(handler).Info("it", "value", held)
			}
			assert.NotContains(t, log.String(), hush, name)
		}
	}
	assert.Equal(t, "{Name:pv Source:csi of a PersistentVolume and driver of plugin \"example.com/disk\" ReadOnly:true}",
		fmt.Sprintf("%+v", secretive()["value"]), "what is public is there")
}

func TestErrorsNameTheKeysOfOptions(t *testing.T) {
	long := strings.Repeat("k", 5000)
	for _, options := range [][]string{{"pw=" + hush + ",a"}, {"pw=" + hush + "\n"}, {long + "=" + hush + "\n"}} {
		err := CheckMountOptions(options)
		require.ErrorIs(t, err, ErrInvalid)
		assert.NotContains(t, err.Error(), hush)
		assert.Less(t, len(err.Error()), 250)
	}
	many := OptionKeys([]string{"a=" + hush, "b", long, "c", "d", "e", "f", "g", "h", "i"})
	assert.NotContains(t, many, hush)
	assert.Contains(t, many, "2 more")
	assert.Less(t, len(many), 250)
}

func TestOnlyPublicValuesAreRecorded(t *testing.T) {
	for name, value := range secretive() {
		spec, ok := value.(*Spec)
		if !ok {
			continue
		}
		before, err := json.Marshal(spec.PersistentVolume)
		require.NoError(t, err)
		r := spec.Recorded(nil)
		raw, err := json.Marshal([]any{r.Volume, r.PersistentVolume})
		require.NoError(t, err)
		assert.NotContains(t, string(raw), hush, name)
		raw, err = json.Marshal([]any{spec.Recorded([]string{"share"})})
		require.NoError(t, err)
		after, err := json.Marshal(spec.PersistentVolume)
		require.NoError(t, err)
		assert.Equal(t, before, after, "the spec itself is not changed")
		assert.NotEmpty(t, raw)
	}
	r := secretive()["persistent"].(*Spec).Recorded([]string{"share", "pw"}).PersistentVolume
	assert.Equal(t, map[string]string{"share": hush, "pwd": Redacted}, r.Spec.CSI.VolumeAttributes)
	assert.Equal(t, []string{"pw=" + hush}, r.Spec.MountOptions)
}

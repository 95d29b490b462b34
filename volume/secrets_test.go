package volume

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

func TestSecretsAreTakenOutOfTextsAndErrors(t *testing.T) {
	pv := &v1.PersistentVolume{}
	pv.Spec.MountOptions = []string{"pw=long-enough", "share=public-value", "vers=4.1"}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{VolumeAttributes: map[string]string{
		"pwd": "abc", "on": "true", "n": "1", "sas": "with\nnewline", "share": "public-value",
	}}
	secrets := NewSpecFromPersistentVolume(pv, false).Secrets([]string{"share"})
	for text, want := range map[string]string{
		"xlong-enoughx, public-value":      "x***x, public-value",
		"pwd=abc: abcd abc":                "pwd=***: abcd ***",
		"abc":                              "***",
		"exit status 1 is true":            "exit status 1 is true",
		fmt.Sprintf("%q", "with\nnewline"): `"***"`,
		"with\nnewline":                    "***",
		"nfs4.1 4.1":                       "nfs4.1 ***",
		"":                                 "",
	} {
		assert.Equal(t, want, secrets.RedactText(text), text)
	}
	quoted := fmt.Errorf("login with long-enough: %w", os.ErrPermission)
	err := secrets.Redact(quoted)
	require.ErrorIs(t, err, os.ErrPermission)
	for _, verb := range verbs {
		if verb != 'T' {
			assert.NotContains(t, fmt.Sprintf("%+"+string(verb)+" %#"+string(verb), err, err), "long-enough")
		}
	}
	same := errors.New("refused")
	assert.Same(t, same, secrets.Redact(same))
	require.NoError(t, secrets.Redact(nil))
	assert.NotContains(t, fmt.Sprint(secrets.RedactPanic(quoted)), "long-enough")
	assert.NotContains(t, fmt.Sprint(secrets.RedactPanic([]string{"long-enough"})), "long-enough")
	assert.Equal(t, 7, secrets.RedactPanic(7))
	options := VolumeOptions{Parameters: map[string]string{"key": "parameter-1"}, MountOptions: []string{"pw=option-1"}, Source: pv}
	assert.Equal(t, "*** *** ***", options.Secrets(nil).RedactText("parameter-1 option-1 long-enough"))
	assert.Equal(t, "a", (*Spec)(nil).Secrets(nil).RedactText("a"))
}

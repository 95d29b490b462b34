package mount

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const hush = "hush-7f3a"

func TestNoRequestPrintsWhatAUserWroteOrASecret(t *testing.T) {
	request := Request{
		Source: "//server/" + hush, Target: "/mnt", FSType: "cifs", Options: []string{"ro", "x=" + hush},
		UserOptions: []string{"pw=" + hush, hush + "2"}, Sensitive: []string{"password=" + hush, hush},
	}
	plan, err := request.Plan()
	require.NoError(t, err)
	for name, value := range map[string]any{"request": request, "pointer": &request, "plan": plan, "pointer to a plan": &plan} {
		for _, held := range []any{value, []any{value}, map[string]any{"a": value}, struct{ Value any }{value}} {
			for _, verb := range "vTtbcdoOqxXUeEfFgGs" {
				for _, flags := range []string{"", "+", "#", " ", "0", "-20", "#+"} {
					text := fmt.Sprintf("%"+flags+string(verb), held)
					assert.NotContains(t, text, hush, "%s %%%s%c", name, flags, verb)
					assert.NotContains(t, text, fmt.Sprintf("%x", hush), "%s %%%s%c", name, flags, verb)
				}
			}
			encoded, err := json.Marshal(held)
			require.NoError(t, err)
			assert.NotContains(t, string(encoded), hush, name)
			var log bytes.Buffer
			for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
				slog.New(handler).Info("it", "value", held)
			}
			assert.NotContains(t, log.String(), hush, name)
		}
	}
	assert.Equal(t, "{//server/*** /mnt cifs [ro x=***] 2 2 }", fmt.Sprint(request), "what is public is there")
}

func TestErrorsOfAPlanNameTheKeysOfOptions(t *testing.T) {
	long := string(bytes.Repeat([]byte("k"), 5000))
	for name, request := range map[string]Request{
		"comma":           {Options: []string{"pw=" + hush + ",a"}},
		"control":         {Options: []string{"pw=" + hush + "\n"}},
		"control of user": {UserOptions: []string{"pw=" + hush + "\n"}},
		"kind of mount":   {UserOptions: []string{"bind=" + hush}},
		"context":         {UserOptions: []string{"context=" + hush}},
		"long":            {UserOptions: []string{long + "=" + hush + "\n"}},
		"long label":      {SELinuxContext: long + " "},
		"long type":       {FSType: long + "/"},
		"long source":     {Source: long + "\x00"},
	} {
		request.Target = "/mnt"
		if request.FSType == "" {
			request.FSType = "tmpfs"
		}
		_, err := request.Plan()
		require.ErrorIs(t, err, ErrInvalid, name)
		assert.NotContains(t, err.Error(), hush, name)
		assert.Less(t, len(err.Error()), 250, name)
	}
}

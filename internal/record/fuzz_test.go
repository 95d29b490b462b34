package record

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzDamage holds that a record of which one byte has changed is never taken for another record.
func FuzzDamage(f *testing.F) {
	f.Add("example.com/fake/disk-1", []byte(`{"version":1}`), uint(40), byte(1))
	f.Add("", []byte{}, uint(0), byte(255))
	f.Add("a\nb \"\\040\" (deleted)\xff", []byte("\n\n"), uint(28), byte(0x20))
	f.Add("\u00e9", []byte(nil), uint(33), byte(0x20))
	f.Fuzz(func(t *testing.T, key string, payload []byte, at uint, change byte) {
		content := encode(key, payload)
		gotKey, gotPayload, err := decode(content)
		require.NoError(t, err)
		require.Equal(t, key, gotKey)
		require.Equal(t, string(payload), string(gotPayload))

		content[at%uint(len(content))] ^= change
		gotKey, gotPayload, err = decode(content)
		if err == nil { // another spelling of the same
			require.Equal(t, key, gotKey)
			require.Equal(t, string(payload), string(gotPayload))
		}
		_, _, err = decode(content[:len(content)-1])
		if !errors.Is(err, ErrNewer) { // by the change
			require.ErrorIs(t, err, errDamaged, "torn")
		}
	})
}

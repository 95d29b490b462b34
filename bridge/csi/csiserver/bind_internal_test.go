package csiserver

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
)

// A server that was killed between a bind and its record finds the mount by the record of its source. It takes off what shows the
// source, and nothing else.
func TestABindThatIsNotOnRecordIsKnownByItsSource(t *testing.T) {
	for name, row := range map[string]struct {
		make  mount.Request
		error error
	}{
		"the source":         {make: mount.Request{Source: "/source", Target: "/target", Options: []string{"bind"}}},
		"a part of it":       {make: mount.Request{Source: "/source/part", Target: "/target", Options: []string{"bind"}}, error: mount.ErrForeign},
		"another filesystem": {make: mount.Request{FSType: "tmpfs", Target: "/target"}, error: mount.ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			mounter := fake.NewMounter(fake.MounterOptions{})
			for _, dir := range []string{"/source", "/target"} {
				require.NoError(t, mounter.Mkdir(dir, 0o700))
			}
			require.NoError(t, mounter.Mount(t.Context(), mount.Request{FSType: "tmpfs", Target: "/source"}))
			require.NoError(t, mounter.Mkdir("/source/part", 0o700))
			require.NoError(t, mounter.Mount(t.Context(), row.make))
			b := binder{mounter}
			require.ErrorIs(t, b.unbind(t.Context(), binding{Target: "/target", Source: "/source"}), row.error)
			_, err := mounter.Lookup(t.Context(), "/target")
			if row.error == nil {
				assert.ErrorIs(t, err, mount.ErrNotMounted)
				return
			}
			assert.NoError(t, err, "it stays")
		})
	}
}

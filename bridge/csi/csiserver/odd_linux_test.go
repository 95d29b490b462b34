package csiserver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
)

// Names and ids that are no names of files live as others do, and none is taken for another.
func TestOddNames(t *testing.T) {
	names := []string{
		"..", ".", "a/../b", "/", "a b", "tab\tnew\nline\r", strings.Repeat("é", 64), strings.Repeat("x", 128), "*?[a]", "csi-0", "pods/x", "=x", "a", "A",
		"volume/a", `back\slash`, `\040`, " (deleted)", "%2F", "a@b:c",
	}
	options := optionsIn(t.TempDir())
	options.Attach = csiserver.AttachOnNode
	c, plugin := faked(t, options)
	callers := map[string]*caller{}
	target := func(i int) string { return fmt.Sprintf("/target/%d", i) }
	for i, name := range names {
		own := &caller{driver: c.driver, capability: c.capability, staging: "/staging"}
		require.NoError(t, own.create(t.Context(), name), "%q", name)
		require.NoError(t, own.stage(t.Context()), "%q", name)
		require.NoError(t, own.publish(t.Context(), target(i)), "%q", name)
		callers[name] = own
	}
	assert.Len(t, plugin.Backend().Handles(), len(names))
	for i, name := range names {
		own := callers[name]
		require.Error(t, own.unstage(t.Context()), "%q", name)
		require.NoError(t, own.unpublish(t.Context(), target(i)), "%q", name)
		require.NoError(t, own.unstage(t.Context()), "%q", name)
		require.NoError(t, own.delete(t.Context()), "%q", name)
	}
	assert.Empty(t, plugin.Backend().Handles())
}

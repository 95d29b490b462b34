package csiserver_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

var (
	errRefused = errors.New("refused")
	errLate    = volume.Uncertain(errors.New("late"))
)

// A caller does not unstage after a code that says that nothing happened. The server gives such a code only if that is so: what the call, or
// an earlier one, has begun is undone.
func TestAFinalCodeOfAStaging(t *testing.T) {
	begin := func(t *testing.T) (*caller, *fake.Plugin) {
		t.Helper()
		c, plugin := faked(t, optionsIn(t.TempDir()))
		require.NoError(t, c.create(t.Context(), "data"))
		require.NoError(t, c.attach(t.Context()))
		return c, plugin
	}
	ended := func(t *testing.T, c *caller) {
		t.Helper()
		require.NoError(t, c.detach(t.Context()), "it is not staged")
		require.NoError(t, c.delete(t.Context()))
	}
	t.Run("undone", func(t *testing.T) {
		c, plugin := begin(t)
		plugin.Inject(fake.MethodMountDevice, fake.FailAfter(errLate), fake.Fail(errRefused))
		codeIs(t, codes.Unavailable, c.stage(t.Context()))
		codeIs(t, codes.Internal, c.stage(t.Context()))
		ended(t, c)
	})
	t.Run("not undone", func(t *testing.T) {
		c, plugin := begin(t)
		plugin.Inject(fake.MethodMountDevice, fake.FailAfter(errRefused))
		plugin.Inject(fake.MethodUnmountDevice, fake.Fail(errRefused))
		codeIs(t, codes.Unavailable, c.stage(t.Context()))
		codeIs(t, codes.FailedPrecondition, c.detach(t.Context()))
		require.NoError(t, c.unstage(t.Context()))
		ended(t, c)
	})
	t.Run("staged before", func(t *testing.T) {
		c, plugin := begin(t)
		require.NoError(t, c.stage(t.Context()))
		plugin.Inject(fake.MethodMountDevice, fake.Fail(errRefused))
		codeIs(t, codes.Unavailable, c.stage(t.Context()))
		require.NoError(t, c.publish(t.Context(), "/target"), "it stays staged")
		require.NoError(t, c.unpublish(t.Context(), "/target"))
		require.NoError(t, c.unstage(t.Context()))
		ended(t, c)
	})
}

// The same holds for what is published.
func TestAFinalCodeOfAPublication(t *testing.T) {
	begin := func(t *testing.T) (*caller, *fake.Plugin) {
		t.Helper()
		c, plugin := faked(t, optionsIn(t.TempDir()))
		require.NoError(t, c.create(t.Context(), "data"))
		require.NoError(t, c.attach(t.Context()))
		require.NoError(t, c.stage(t.Context()))
		return c, plugin
	}
	t.Run("undone", func(t *testing.T) {
		c, plugin := begin(t)
		plugin.Inject(fake.MethodSetUp, fake.FailAfter(errLate), fake.Fail(errRefused))
		codeIs(t, codes.Unavailable, c.publish(t.Context(), "/target"))
		codeIs(t, codes.Internal, c.publish(t.Context(), "/target"))
		require.NoError(t, c.unstage(t.Context()), "it is not published")
	})
	t.Run("not undone", func(t *testing.T) {
		c, plugin := begin(t)
		plugin.Inject(fake.MethodSetUp, fake.FailAfter(errRefused))
		plugin.Inject(fake.MethodTearDown, fake.Fail(errRefused))
		codeIs(t, codes.Unavailable, c.publish(t.Context(), "/target"))
		codeIs(t, codes.FailedPrecondition, c.unstage(t.Context()))
		require.NoError(t, c.unpublish(t.Context(), "/target"))
		require.NoError(t, c.unstage(t.Context()))
	})
	t.Run("published before", func(t *testing.T) {
		c, plugin := begin(t)
		require.NoError(t, c.publish(t.Context(), "/target"))
		plugin.Inject(fake.MethodSetUp, fake.Fail(errRefused))
		codeIs(t, codes.Unavailable, c.publish(t.Context(), "/target"))
		mounts, err := c.options.Mounter.List(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "/target", mounts[len(mounts)-1].Path, "it stays published")
		require.NoError(t, c.unpublish(t.Context(), "/target"))
		require.NoError(t, c.unstage(t.Context()))
	})
}

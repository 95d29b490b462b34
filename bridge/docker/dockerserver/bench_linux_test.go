package dockerserver_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/mounttest"
)

// BenchmarkMountAndUnmount is what the driver adds to a container with a volume of loop-block that no other container has: a loop
// device, an ext4 that is mounted, and both undone, over the socket.
func BenchmarkMountAndUnmount(b *testing.B) {
	mounttest.RequireRoot(b)
	options := optionsIn(b)
	options.Logger = slog.New(slog.DiscardHandler)
	d := serve(b, loops(), options)
	d.create(b, "v", nil)
	for b.Loop() {
		require.NotEmpty(b, d.mount(b, "v", "id"))
		d.unmount(b, "v", "id")
	}
	d.remove(b, "v")
}

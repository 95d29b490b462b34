package mount

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// picky mounts nothing, and fails like a kernel that does not know one option.
type picky struct {
	Interface
	refused string
	err     error
	asked   []string
}

func (p *picky) Mount(_ context.Context, request Request) error {
	p.asked = append(p.asked, request.FSType+" "+request.Target+" "+strings.Join(request.Options, ","))
	if slices.Contains(request.Options, p.refused) {
		return p.err
	}
	return nil
}

func TestMemoryIsNotSwappedWhereThatCanBePromised(t *testing.T) {
	able := &picky{}
	require.NoError(t, MountMemory(t.Context(), able, "/a", "mode=755"))
	assert.Equal(t, []string{"tmpfs /a mode=755,noswap"}, able.asked)

	old := &picky{refused: "noswap", err: syscall.EINVAL}
	require.NoError(t, MountMemory(t.Context(), old, "/a", "mode=755"))
	assert.Equal(t, []string{"tmpfs /a mode=755,noswap", "tmpfs /a mode=755"}, old.asked)

	broken := &picky{refused: "noswap", err: syscall.ENOMEM}
	require.ErrorIs(t, MountMemory(t.Context(), broken, "/a"), syscall.ENOMEM)
	assert.Len(t, broken.asked, 1)
}

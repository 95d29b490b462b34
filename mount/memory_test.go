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
	source  string
}

func (p *picky) Mount(_ context.Context, request Request) error {
	p.source = request.Source
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

func TestMemoryIsKnownByItsMark(t *testing.T) {
	p := &picky{}
	require.NoError(t, MountMemory(t.Context(), p, "/a"))
	made := MountPoint{FSType: "tmpfs", Root: "/", Source: p.source}
	assert.True(t, IsMemoryOf("/a", made))
	assert.False(t, IsMemoryOf("/b", made), "it is that of another volume")
	for _, foreign := range []MountPoint{
		{FSType: "tmpfs", Root: "/", Source: "tmpfs"},
		{FSType: "tmpfs", Root: "/part", Source: p.source},
		{FSType: "ext4", Root: "/", Source: p.source},
	} {
		assert.False(t, IsMemoryOf("/a", foreign))
	}
}

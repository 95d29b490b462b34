package owned

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A directory that is made while the proofs of others go keeps its own: it is there before its proof is, and is seen when that is
// taken away.
func TestProofThatIsMadeMeanwhileStays(t *testing.T) {
	top := t.TempDir()
	proof, made := filepath.Join(t.TempDir(), "a"), Identity{Filesystem: 1, Inode: 2, Seconds: 3, Nanoseconds: 4}
	require.NoError(t, os.Symlink(made.link(), proof))
	require.NoError(t, forgetBelow(top, proof))
	link, err := os.Readlink(proof)
	require.NoError(t, err)
	require.Equal(t, made.link(), link)

	require.NoError(t, os.Remove(top))
	require.NoError(t, forgetBelow(top, proof))
	_, err = os.Lstat(proof)
	require.ErrorIs(t, err, os.ErrNotExist)
}

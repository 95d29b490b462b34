package exported

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestListHasALineForEachThingThatAProgramDependsOn(t *testing.T) {
	dir, err := filepath.Abs("testdata/sample")
	require.NoError(t, err)
	lines, err := List(dir, "example.com/sample")
	require.NoError(t, err)
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, ".: ")
	}
	assert.Equal(t, []string{
		`const Limit int64 = 1099511627776`,
		`const Reason untyped string = "Failed"`,
		`func Map[K comparable, V Number](map[K]V, func(K) V) map[K]V`,
		`method (*Base) Pointer()`,
		`method (*List[T any]) Add(T)`,
		`method (*Struct) Pointer()`,
		`method (Base) Value() int`,
		`method (Struct) Value() int`,
		`method (Word) String() string`,
		`type Alias = Struct`,
		`type Base struct`,
		`type Base struct, Size int64`,
		`type List[T any] struct`,
		`type List[T any] struct, Items []T`,
		`type Number interface{~int | ~int64}`,
		`type Open interface { Close, Do }`,
		`type Open interface, Close() error`,
		`type Open interface, Do(context.Context, ...string) (int, error)`,
		`type Sealed interface, Do()`,
		`type Sealed interface, sealed`,
		`type Struct struct`,
		`type Struct struct, Base Base`,
		`type Struct struct, Call func(context.Context) error`,
		`type Word string`,
		`var ErrGone error`,
	}, lines)
}

func TestMissingIsWhatIsGone(t *testing.T) {
	assert.Equal(t, []string{"b", "d"}, Missing([]string{"a", "b", "c", "d"}, []string{"a", "c", "e"}))
	assert.Empty(t, Missing(nil, []string{"a"}))
}

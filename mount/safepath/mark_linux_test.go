package safepath

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMarksAreReadAsTheyWereWritten(t *testing.T) {
	for _, m := range []mark{
		{index: 0, id: fileID{8, 1, 2}, access: "rw", propagation: Private},
		{index: 12, id: fileID{math.MaxUint32, math.MaxUint32, math.MaxUint64}, access: "ro", propagation: Slave},
	} {
		parsed, ok := parseMark(m.name())
		assert.True(t, ok)
		assert.Equal(t, m, parsed)
	}
	for _, name := range []string{
		"", "0", ".0", ".0.8-1-2.rw", ".0.8-1.rw.private", ".x.8-1-2.rw.private", ".0.8-1-x.rw.private",
		".00.8-1-2.rw.private", ".0.8-1-2.rw.private.x", "x.0.8-1-2.rw.private", ".0.4294967296-1-2.rw.private",
	} {
		_, ok := parseMark(name)
		assert.False(t, ok, name)
	}
}

func FuzzMark(f *testing.F) {
	f.Add(".0.8-1-2.rw.private")
	f.Add(".12.253-0-18446744073709551615.ro.slave")
	f.Fuzz(func(t *testing.T, name string) {
		m, ok := parseMark(name)
		if ok && m.name() != name {
			t.Errorf("%q was read as %q", name, m.name())
		}
		if _, isIndex := parseIndex(name); ok && isIndex {
			t.Errorf("%q is both a mark and a mount point", name)
		}
	})
}

package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPathElementIsOneElement(t *testing.T) {
	for mountPath, want := range map[string]string{"/data": "data", "/var/lib//x/": "var~lib~x"} {
		assert.Equal(t, want, pathElement(mountPath))
	}
}

// That a volume is read-only must be seen, not assumed: one that can be written is an error, and is left as it was.
func TestWritableVolumeThatShouldBeReadOnlyIsFound(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	c := &Containers{binds: []bind{{volume: "d", path: dir, readOnly: true}, {volume: "f", path: file, readOnly: true}}}
	findings := c.Use()
	require.Len(t, findings, 2)
	for _, f := range findings {
		assert.Contains(t, f.Error, errWritable.Error())
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))
}

// What one container wrote and another cannot read is an error of that other.
func TestVolumeThatIsNotSharedIsFound(t *testing.T) {
	c := &Containers{binds: []bind{
		{pod: "n/p", container: "a", volume: "v", path: t.TempDir()}, {pod: "n/p", container: "b", volume: "v", path: t.TempDir()},
	}}
	failed := 0
	for _, f := range c.Use() {
		if f.Error != "" {
			failed++
		}
	}
	assert.Equal(t, 2, failed)
}

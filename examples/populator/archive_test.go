package populator

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/volume"
)

type entry struct {
	tar.Header
	content string
}

func packed(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		e.Size, e.Mode = int64(len(e.content)), 0o640
		require.NoError(t, w.WriteHeader(&e.Header))
		_, err := w.Write([]byte(e.content))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

func described(location string, content []byte) Archive {
	sum := sha256.Sum256(content)
	return Archive{Location: location, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
}

func populate(t *testing.T, dir string, archive Archive) (string, error) {
	t.Helper()
	archives := Archives{Find: func(context.Context, string, string) (Archive, error) { return archive, nil }}
	claim := &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{DataSourceRef: &v1.TypedObjectReference{Name: "a"}}}
	return archives.Populate(t.Context(), persistentvolume.PopulateRequest{Claim: claim, Dir: dir, Report: func(persistentvolume.PopulateProgress) {}})
}

func inFile(t *testing.T, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.tar")
	require.NoError(t, os.WriteFile(file, content, 0o600))
	return file
}

func TestAnArchiveIsExtracted(t *testing.T) {
	content := packed(t,
		entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d/"}},
		entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "d/f"}, content: "hello"},
		entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "d/s", Linkname: "../d/f"}},
		entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/f"}},
	)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }))
	defer server.Close()
	for name, location := range map[string]string{"file": inFile(t, content), "address": server.URL} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			archive := described(location, content)
			digest, err := populate(t, dir, archive)
			require.NoError(t, err)
			assert.Equal(t, "sha256:"+archive.SHA256, digest)
			for _, file := range []string{"d/f", "d/s", "h"} {
				got, err := os.ReadFile(filepath.Join(dir, file))
				require.NoError(t, err)
				assert.Equal(t, "hello", string(got))
			}
		})
	}
}

func TestAnotherArchiveIsRefused(t *testing.T) {
	content := packed(t, entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "f"}, content: "hello"})
	for name, change := range map[string]func(*Archive){
		"digest":  func(a *Archive) { a.SHA256 = hex.EncodeToString(make([]byte, 32)) },
		"shorter": func(a *Archive) { a.Size++ },
		"longer":  func(a *Archive) { a.Size-- },
		"scheme":  func(a *Archive) { a.Location = "file:///etc/passwd" },
	} {
		t.Run(name, func(t *testing.T) {
			archive := described(inFile(t, content), content)
			change(&archive)
			digest, err := populate(t, t.TempDir(), archive)
			require.ErrorIs(t, err, volume.ErrInvalid)
			assert.Empty(t, digest)
		})
	}
}

// An entry that says it is huge is refused before a byte of it is written.
func TestAHugeEntryIsRefused(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, tar.NewWriter(&out).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o600, Size: 1 << 50}))
	dir := t.TempDir()
	_, err := populate(t, dir, described(inFile(t, out.Bytes()), out.Bytes()))
	require.ErrorIs(t, err, volume.ErrInvalid)
	assert.NoFileExists(t, filepath.Join(dir, "f"))
}

func TestHostileArchivesWriteNothingOutside(t *testing.T) {
	file := func(name string) entry {
		return entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: name}, content: "x"}
	}
	link := func(kind byte, name, to string) entry {
		return entry{Header: tar.Header{Typeflag: kind, Name: name, Linkname: to}}
	}
	for name, entries := range map[string][]entry{
		"parent":               {file("../out/f")},
		"parent in the middle": {file("d/../../out/f")},
		"absolute":             {file("/out/f")},
		"symlink out":          {link(tar.TypeSymlink, "s", "../out"), file("s/f")},
		"absolute symlink":     {link(tar.TypeSymlink, "s", "/"), file("s/f")},
		"symlink of a symlink": {link(tar.TypeSymlink, "d/s", ".."), link(tar.TypeSymlink, "t", "d/s/../../out"), file("t/f")},
		"links alone":          {link(tar.TypeSymlink, "d/s", ".."), link(tar.TypeSymlink, "t", "d/s/../out")},
		"hard link out":        {link(tar.TypeLink, "h", "../out/secret")},
		"device":               {link(tar.TypeBlock, "b", "")},
		"character device":     {link(tar.TypeChar, "c", "")},
		"pipe":                 {link(tar.TypeFifo, "p", "")},
		"twice":                {file("f"), file("f")},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir, out := filepath.Join(base, "volume"), filepath.Join(base, "out")
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, os.Mkdir(out, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(out, "secret"), []byte("secret"), 0o600))
			content := packed(t, entries...)
			digest, err := populate(t, dir, described(inFile(t, content), content))
			require.Error(t, err)
			assert.Empty(t, digest)
			left, err := os.ReadDir(out)
			require.NoError(t, err)
			assert.Len(t, left, 1, "only the secret")
		})
	}
}

package mount_test

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// TestInterruptedLookupIsRepeated lets a filesystem answer EINTR, as the server of a FUSE filesystem does when a thread of
// the Go runtime gets one of its signals.
func TestInterruptedLookupIsRepeated(t *testing.T) {
	for name, without := range variants {
		t.Run(name, func(t *testing.T) { interruptedMount(t, mount.New(mount.Options{Without: without})) })
	}
}

func interruptedMount(t *testing.T, m *mount.Mounter) {
	t.Helper()
	f := newHungFUSE(t, m)
	request := mount.Request{
		Source: filepath.Join(f.path, "dir"), Target: filepath.Join(t.TempDir(), "target"), Options: []string{"bind"},
	}
	result := make(chan error, 1)
	go func() { result <- m.Mount(t.Context(), request) }()
	for range 3 {
		f.refuse(f.await(), unix.EINTR)
	}
	f.refuse(f.await(), unix.EACCES)
	require.ErrorIs(t, <-result, unix.EACCES)
	require.NoError(t, m.Unmount(t.Context(), f.path, mount.UnmountOptions{Force: time.Minute}))
}

// refuse answers a request with an error.
func (f *hungFUSE) refuse(request uint64, errno unix.Errno) {
	f.t.Helper()
	var answer bytes.Buffer
	header := struct {
		Len    uint32
		Error  int32
		Unique uint64
	}{16, -int32(errno), request}
	require.NoError(f.t, binary.Write(&answer, binary.NativeEndian, header))
	_, err := unix.Write(f.server, answer.Bytes())
	require.NoError(f.t, err)
}

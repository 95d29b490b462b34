package mount

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// minBothEnds is the smallest number of mounts for which a table is read from both ends at once.
const minBothEnds = 500

// backReader queries the mounts of a table from its end on, in a goroutine of its own, while another reads the text from the
// beginning. The kernel needs several microseconds per mount, nearly all of it for the path.
type backReader struct {
	ids   []uint64
	table []MountPoint // of the same length; backReader fills its end
	read  atomic.Int64 // lines read from the beginning
	asked atomic.Int64 // index of the first mount that was or is being queried
	err   error
	done  chan struct{}
}

// canReadBothEnds reports whether readBothEnds is possible, and faster, for the mounts with the ids.
func canReadBothEnds(ids []uint64) bool {
	return len(ids) >= minBothEnds && runtime.GOMAXPROCS(0) > 1 && hasSource(ids[0])
}

// readBothEnds reads the table of the mounts with the ids, from its open file and from its end. Nothing was read from the file
// before. It reports false, without a table, if mounts have changed meanwhile.
func (r *reader) readBothEnds(fd int, ids []uint64) (table []MountPoint, ok bool, err error) {
	back := &backReader{ids: ids, table: make([]MountPoint, len(ids)), done: make(chan struct{})}
	back.asked.Store(int64(len(ids)))
	go back.run()
	content, err := back.readFront(fd)
	back.read.Store(int64(len(ids))) // ends the other goroutine
	<-back.done
	if err != nil || back.err != nil {
		return nil, false, err
	}
	front := int(back.asked.Load())
	end := lineEnd(content, front)
	if end < 0 || pollNow(fd) {
		return nil, false, nil
	}
	text := unsafe.String(unsafe.SliceData(content), end) // no code writes to it any more
	if lines, err := parseInto(back.table[:0:front], text); err != nil || len(lines) != front {
		return nil, false, err
	}
	for i := range front {
		back.table[i].UniqueID = ids[i]
	}
	return back.table, true, nil
}

// hasSource reports whether statmount returns the mount's source, which mountPointOf needs.
func hasSource(id uint64) bool {
	var buffer [statmountBuffer]byte
	status, _, err := statmount(id, statmountSBSource, buffer[:])
	return err == nil && status.mask&statmountSBSource != 0
}

// run queries one mount after the other, backwards, up to the lines that readFront has read.
func (b *backReader) run() {
	defer close(b.done)
	facts := statusParser{parser: parser{words: make([]string, 0, len(b.ids))}}
	text := arena{size: len(b.ids) / 2 * bytesPerMount}
	buffer := make([]byte, statmountBuffer)
	for i := len(b.ids) - 1; i >= 0 && int64(i) >= b.read.Load(); i-- {
		b.asked.Store(int64(i))
		status, words, err := statmount(b.ids[i], statmountAll, buffer)
		if b.table[i], err = mountPointOf(b.ids[i], &status, text.keep(words), err, &facts); err != nil {
			b.err = err
			return
		}
	}
}

// readFront reads the text up to the first mount that run has queried.
func (b *backReader) readFront(fd int) ([]byte, error) {
	content := make([]byte, 0, len(b.ids)*bytesPerMount)
	for lines := int64(0); lines < b.asked.Load(); b.read.Store(lines) {
		content = slices.Grow(content, unix.Getpagesize())
		var n int
		err := retry(func() (err error) {
			n, err = unix.Read(fd, content[len(content):cap(content)])
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("reading the mount table: %w", err)
		}
		if n == 0 {
			break
		}
		lines += int64(bytes.Count(content[len(content):len(content)+n], []byte{'\n'}))
		content = content[:len(content)+n]
	}
	return content, nil
}

// lineEnd returns the offset after the first n lines, or -1 if there are fewer.
func lineEnd(content []byte, n int) (end int) {
	for range n {
		length := bytes.IndexByte(content[end:], '\n')
		if length < 0 {
			return -1
		}
		end += length + 1
	}
	return end
}

// arena allocates strings from large blocks of memory.
type arena struct {
	size int // of a block
	free []byte
}

func (a *arena) keep(text []byte) string {
	if len(a.free) < len(text) {
		a.free = make([]byte, max(a.size, len(text)))
	}
	n := copy(a.free, text)
	kept := unsafe.String(unsafe.SliceData(a.free), n) // no code writes to it again
	a.free = a.free[n:]
	return kept
}

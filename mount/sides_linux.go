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

// minBothSides is from how many mounts on a table is read from both sides at once.
const minBothSides = 500

// backReader asks for the mounts of a table from its end on, in a goroutine of its own, while the text is read from the
// beginning: the kernel needs several microseconds for a mount, nearly all of it to find out the path.
type backReader struct {
	ids   []uint64
	table []MountPoint // of the same length, of which it fills the end
	read  atomic.Int64 // lines that are read of the beginning
	asked atomic.Int64 // the first mount that is asked for, or being so
	err   error
	done  chan struct{}
}

// canReadBothSides reports whether it is worth while and possible for the mounts with the ids.
func canReadBothSides(ids []uint64) bool {
	return len(ids) >= minBothSides && runtime.GOMAXPROCS(0) > 1 && tellsSource(ids[0])
}

// readBothSides reads a table of the mounts with the ids from its open file, which has not been read, and from its end. It
// reports false when mounts have changed in between, and then there is no table.
func (r *reader) readBothSides(fd int, ids []uint64) (table []MountPoint, ok bool, err error) {
	back := &backReader{ids: ids, table: make([]MountPoint, len(ids)), done: make(chan struct{})}
	back.asked.Store(int64(len(ids)))
	go back.run()
	content, err := back.readFront(fd)
	back.read.Store(int64(len(ids))) // which ends the other side, if it has not come so far
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

// tellsSource reports whether the kernel tells the source of the mount, without which there are no facts (foundBy).
func tellsSource(id uint64) bool {
	var buffer [statmountBuffer]byte
	status, _, err := statmount(id, statmountSBSource, buffer[:])
	return err == nil && status.mask&statmountSBSource != 0
}

// run asks for one mount after the other until it meets the front.
func (b *backReader) run() {
	defer close(b.done)
	facts := words{parser: parser{words: make([]string, 0, len(b.ids))}}
	text := arena{size: len(b.ids) / 2 * bytesPerMount}
	buffer := make([]byte, statmountBuffer)
	for i := len(b.ids) - 1; i >= 0 && int64(i) >= b.read.Load(); i-- {
		b.asked.Store(int64(i))
		status, words, err := statmount(b.ids[i], statmountAll, buffer)
		if b.table[i], err = foundBy(b.ids[i], &status, text.keep(words), err, &facts); err != nil {
			b.err = err
			return
		}
	}
}

// readFront reads the text until all lines are there that the other side has not asked for.
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

// lineEnd is where the lines end of which there are n at least, or -1.
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

// arena keeps strings in few pieces of memory.
type arena struct {
	size int // of a piece
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

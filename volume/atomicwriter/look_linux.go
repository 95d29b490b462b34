package atomicwriter

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// maxListed bounds how many entries of a published set are looked at beside those that are wanted, because another
	// program may have put any number there.
	maxListed = 1 << 12
	// bytesListed is how much of a path counts as one more entry: what is deep or has a long name costs more to look at.
	bytesListed = 64
)

// look compares a published set with the one that is wanted.
type look struct {
	want  set
	found map[string]bool // each file: whether it holds what is wanted
	odd   bool            // something lies there that no set has
	seen  int             // entries that are not wanted
	queue []string        // directories that are still to be read
}

// lookAt compares what lies in d with want. What cannot be read is not what is wanted. The error is ctx's.
func lookAt(ctx context.Context, d dir, want set) (*look, error) {
	l := &look{want: want, found: make(map[string]bool), queue: []string{"."}}
	for len(l.queue) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		below := l.queue[0]
		l.queue = l.queue[1:]
		if err := l.readDir(ctx, d, below); err != nil {
			l.odd = true
		}
	}
	return l, ctx.Err()
}

func (l *look) readDir(ctx context.Context, d dir, below string) error {
	at, err := d.descend(below)
	if err != nil {
		return err
	}
	defer at.close()
	return at.each(func(name string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		whole := path.Join(below, name)
		if !l.want.has(whole) {
			l.seen += 1 + len(whole)/bytesListed
		}
		if l.seen > maxListed {
			return errors.New("too many entries")
		}
		return l.entry(at, name, whole)
	})
}

func (l *look) entry(at dir, name, whole string) error {
	st, err := at.stat(name)
	if err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if _, ours := l.want.dirs[whole]; !ours {
			l.odd = true
		}
		if len(whole) <= maxPath {
			l.queue = append(l.queue, whole)
		}
	case unix.S_IFREG:
		f, ours := l.want.find(whole)
		l.found[whole] = ours && st.Size == uint64(len(f.Data)) && at.holds(name, f.Data)
	default:
		l.found[whole] = false
	}
	return nil
}

// holds reports whether a file can be read and holds data.
func (d dir) holds(name string, data []byte) bool {
	fd, err := d.openFile(name)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	buf := make([]byte, min(len(data)+1, 64<<10))
	for {
		n, err := f.Read(buf)
		if !bytes.HasPrefix(data, buf[:n]) {
			return false
		}
		data = data[n:]
		if err != nil {
			return errors.Is(err, io.EOF) && len(data) == 0
		}
	}
}

// same reports whether all that was found is what is wanted.
func (l *look) same() bool {
	if l.odd || len(l.found) != len(l.want.files) {
		return false
	}
	for _, holds := range l.found {
		if !holds {
			return false
		}
	}
	return true
}

// report writes the difference into a result.
func (l *look) report(r *Result) {
	for _, f := range l.want.files {
		switch holds, there := l.found[f.path]; {
		case !there:
			r.Added = append(r.Added, f.path)
		case !holds:
			r.Modified = append(r.Modified, f.path)
		}
	}
	for name := range l.found {
		if _, wanted := l.want.find(name); !wanted {
			r.Removed = append(r.Removed, name)
		}
	}
	slices.Sort(r.Removed)
}

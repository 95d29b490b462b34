package usage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/treewalk"
)

const (
	// blockSize is the unit of st_blocks, whatever the filesystem's own block is. See stat(3type).
	blockSize = 512
	// statMask is what is asked for each file.
	statMask = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_BLOCKS
	// workersPerProcessor, with its bounds, is how many workers a walk has. More than there are processors cost nothing
	// where the inodes are in memory, and where they are not, some workers wait while others work. On two processors and
	// an ext4 image read by direct I/O, four take about a fifth less time than two, and eight or sixteen no less than
	// four; a disk or server that answers later keeps more of them busy.
	workersPerProcessor, minWorkers, maxWorkers = 4, 8, 16
)

// walkTree measures the tree at root by a walk.
func walkTree(ctx context.Context, root string) (Usage, error) {
	workers := min(max(workersPerProcessor*runtime.GOMAXPROCS(0), minWorkers), maxWorkers)
	return walk(ctx, root, treewalk.Options{Workers: workers})
}

func walk(ctx context.Context, root string, options treewalk.Options) (Usage, error) {
	options.Mask, options.Fresh = statMask, true
	tree, err := treewalk.Open(root, options)
	if err != nil {
		return Usage{}, err
	}
	defer tree.Close()
	var counters []*counter
	links := newLinkSet(deviceOf(tree.Stat()))
	err = tree.Walk(ctx, func() treewalk.Visitor {
		counters = append(counters, &counter{links: links})
		return counters[len(counters)-1]
	})
	total := counter{links: links}
	total.count(tree.Stat())
	for _, c := range counters {
		if c.failed != nil {
			return Usage{}, failure(c.failed)
		}
		total.used.Bytes += c.used.Bytes
		total.used.Inodes += c.used.Inodes
	}
	if err != nil {
		return Usage{}, err
	}
	return total.used, nil
}

// failure gives an error of the walk the words of this package.
func failure(err error) error {
	var at *fs.PathError
	if errors.Is(err, treewalk.ErrMoved) && errors.As(err, &at) {
		return &fs.PathError{Op: at.Op, Path: at.Path, Err: fmt.Errorf("%w: %w", ErrChanged, at.Err)}
	}
	return err
}

// counter is what one worker has seen.
type counter struct {
	links  *linkSet
	used   Usage
	failed error // the first failure, with which the walk ends
}

var _ treewalk.Visitor = (*counter)(nil)

// Visit implements [treewalk.Visitor].
func (c *counter) Visit(e *treewalk.Entry) treewalk.Verdict {
	c.count(&e.Stat)
	return treewalk.Next
}

// Fail implements [treewalk.Visitor]. What could not be counted would be missing in the answer.
func (c *counter) Fail(err error) treewalk.Verdict {
	if c.failed == nil {
		c.failed = err
	}
	return treewalk.Stop
}

// count adds one file. One with several links counts the first time that it is seen, by whichever worker.
func (c *counter) count(st *unix.Statx_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR && !c.links.add(inode{deviceOf(st), st.Ino}) {
		return
	}
	c.used.Bytes += int64(st.Blocks) * blockSize
	c.used.Inodes++
}

func deviceOf(st *unix.Statx_t) uint64 { return unix.Mkdev(st.Dev_major, st.Dev_minor) }

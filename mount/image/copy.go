package image

import (
	"context"
	"fmt"
	"io"
	"os"
)

// copyStep is how many bytes are copied between two checks of the context, and copyBuffer how many at once.
const (
	copyStep   = 16 << 20
	copyBuffer = 1 << 20
)

// CopyData copies the data of a file to another of the same length that is still empty, and skips the holes. It calls tell
// after every few mebibytes and at the end. done includes holes, which take no time.
func CopyData(ctx context.Context, to, from *os.File, tell func(done, size int64)) error {
	if err := from.Sync(); err != nil { // so no hole is hidden by data in memory
		return err
	}
	info, err := from.Stat()
	if err != nil {
		return err
	}
	c := copying{to: to, from: from, size: info.Size(), tell: tell, buffer: make([]byte, copyBuffer)}
	for offset := int64(0); offset < c.size; {
		start, end, err := nextData(from, offset, c.size)
		if err != nil {
			return fmt.Errorf("image %q: %w", from.Name(), err)
		}
		if err := c.run(ctx, start, end); err != nil {
			return err
		}
		offset = end
	}
	tell(c.size, c.size)
	return nil
}

type copying struct {
	to, from *os.File
	size     int64
	tell     func(done, size int64)
	buffer   []byte
}

// run copies the data from start to end.
func (c copying) run(ctx context.Context, start, end int64) error {
	for offset := start; offset < end; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the copy was broken off at %d of %d bytes: %w", offset, c.size, context.Cause(ctx))
		}
		step := min(copyStep, end-offset)
		copied, err := io.CopyBuffer(io.NewOffsetWriter(c.to, offset), io.NewSectionReader(c.from, offset, step), c.buffer)
		if err == nil && copied != step {
			err = fmt.Errorf("%q was cut off meanwhile: %w", c.from.Name(), io.ErrUnexpectedEOF)
		}
		if err != nil {
			return fmt.Errorf("copying to %q: %w", c.to.Name(), err)
		}
		offset += step
		c.tell(offset, c.size)
	}
	return nil
}

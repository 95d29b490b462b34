package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/volumekit/volumekit/internal/journal"
)

// A log is a head, one line of text, and frames:
//
//	volumekit-records/2 00000000 1234
//	put 00000000 16 0 "example.com/plugin/disk-1"
//	{"version": "1"}
//	del 00000000 0 1270 "example.com/plugin/disk-1"
//
// The head says how many bytes after it there were when the log got its name: those were synced before. A frame says how long its
// record is, how long the log was when the frame was written, all of it acknowledged, and its key. The checksum is that of the line
// without it, and of what follows.

const (
	logFormat  = "volumekit-records/"
	logVersion = 2
	putKind    = "put"
	delKind    = "del"
	// removalSize is how many bytes the frame of a removal is longer than its key, at most.
	removalSize = 48
	// sector is the size of the unit that is written completely or not at all before a power cut, in bytes.
	sector = 512
)

// errShort says that the data ends before the frame.
var errShort = errors.New("it is cut off")

// frame is a record in the log, or the removal of one.
type frame struct {
	key     string
	payload []byte
	removed bool
	start   int64 // the length of the log before the frame was written; all of that was acknowledged
}

// span is the part of a log from one offset to another.
type span struct{ from, to int64 }

func (s span) size() int64 { return s.to - s.from }

// placed is a frame and its place in a log.
type placed struct {
	frame
	span
}

// noSum is the placeholder of a checksum.
const noSum = " 00000000 "

// hexSum returns the checksum of a text without the checksum after its first word.
func hexSum(word, rest []byte) (sum [8]byte) {
	var number [4]byte
	binary.BigEndian.PutUint32(number[:], journal.Checksum(word, []byte(" "), rest))
	hex.Encode(sum[:], number[:])
	return sum
}

// sumUp writes the checksum of a text after its first word. word is the length of the first word.
func sumUp(text []byte, word int) {
	sum := hexSum(text[:word], text[word+len(noSum):])
	copy(text[word+1:], sum[:])
}

// checkSum checks the checksum of a text, and returns the text before and after it.
func checkSum(text []byte) (word, rest []byte, err error) {
	word, rest, ok := bytes.Cut(text, []byte(" "))
	sum, rest, also := bytes.Cut(rest, []byte(" "))
	if !ok || !also {
		return nil, nil, errDamaged
	}
	if right := hexSum(word, rest); string(sum) != string(right[:]) {
		return nil, nil, fmt.Errorf("%w: wrong checksum", errDamaged)
	}
	return word, rest, nil
}

// appendTo appends the frame to text, in the form that it has in a log.
func (f frame) appendTo(text []byte) []byte {
	word, body, at := putKind, f.payload, len(text)
	if f.removed {
		word, body = delKind, nil
	}
	text = append(append(text, word...), noSum...)
	text = append(strconv.AppendInt(text, int64(len(body)), 10), ' ')
	text = append(strconv.AppendInt(text, f.start, 10), ' ')
	text = append(strconv.AppendQuoteToASCII(text, f.key), '\n')
	text = append(append(text, body...), '\n')
	sumUp(text[at:], len(word))
	return text
}

// parseFrame returns the frame at the beginning of data, and its length there.
func parseFrame(data []byte) (frame, int, error) {
	end := bytes.IndexByte(data, '\n')
	if end < 0 {
		return frame{}, 0, errShort
	}
	fields := strings.SplitN(string(data[:end]), " ", 5)
	if len(fields) != 5 || fields[0] != putKind && fields[0] != delKind {
		return frame{}, 0, fmt.Errorf("%w: no frame", errDamaged)
	}
	size, sizeErr := strconv.Atoi(fields[2])
	start, startErr := strconv.ParseInt(fields[3], 10, 64)
	key, keyErr := strconv.Unquote(fields[4])
	if err := errors.Join(sizeErr, startErr, keyErr); err != nil || size < 0 || size > maxSize {
		return frame{}, 0, errors.Join(fmt.Errorf("%w: no head of a frame", errDamaged), err)
	}
	whole := end + 1 + size + 1
	if whole > len(data) {
		return frame{}, 0, errShort
	}
	if _, _, err := checkSum(data[:whole]); err != nil {
		return frame{}, 0, err
	}
	return frame{key: key, payload: data[end+1 : whole-1], removed: fields[0] == delKind, start: start}, whole, nil
}

// headLine returns the head of a log that has size bytes after the head.
func headLine(size int) []byte {
	word := logFormat + strconv.Itoa(logVersion)
	text := fmt.Appendf(nil, "%s%s%d\n", word, noSum, size)
	sumUp(text, len(word))
	return text
}

// parseHead returns the length of the head, and up to which offset the log was acknowledged when it got its name. If the head names a newer
// version and its checksum is right, the error matches [ErrNewer].
func parseHead(data []byte) (length int, proven int64, err error) {
	end := bytes.IndexByte(data, '\n')
	if end < 0 || !bytes.HasPrefix(data, []byte(logFormat)) {
		return 0, 0, fmt.Errorf("%w: no head", errDamaged)
	}
	word, rest, err := checkSum(data[:end+1])
	if err != nil {
		return 0, 0, err
	}
	if version, err := strconv.Atoi(strings.TrimPrefix(string(word), logFormat)); err != nil || version != logVersion {
		return 0, 0, fmt.Errorf("log of format %q: %w", word, ErrNewer)
	}
	size, err := strconv.ParseInt(strings.TrimSuffix(string(rest), "\n"), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: no head: %w", errDamaged, err)
	}
	return end + 1, int64(end+1) + size, nil
}

// parsedLog is the content of a log.
type parsedLog struct {
	content []byte
	frames  []placed
	// holes are the parts without a frame.
	holes []hole
	// base is the length of the log when it got its name. proven is the offset up to which all was acknowledged, by the start of any
	// frame.
	base, proven int64
}

// hole is a part of a log without a frame.
type hole struct {
	span
	err error
}

// parseLog parses all frames, also those after a damaged part. If the whole log is of a newer version, the error matches [ErrNewer].
func parseLog(content []byte) (parsedLog, error) {
	p := parsedLog{content: content}
	length, base, err := parseHead(content)
	switch {
	case errors.Is(err, ErrNewer):
		return p, err
	case err != nil:
		length = next(content, 0)
		p.holes = append(p.holes, hole{span{0, int64(length)}, err})
		base = max(1, int64(length)) // It had a head.
	}
	p.base, p.proven = base, base
	for at := length; at < len(content); {
		f, size, err := parseFrame(content[at:])
		if err != nil {
			to := next(content, at)
			p.holes = append(p.holes, hole{span{int64(at), int64(to)}, err})
			at = to
			continue
		}
		p.frames = append(p.frames, placed{f, span{int64(at), int64(at + size)}})
		p.proven = max(p.proven, f.start)
		at += size
	}
	told := len(p.holes) > 0 && p.holes[len(p.holes)-1].to == int64(len(content))
	if int64(len(content)) < p.proven && !told {
		p.holes = append(p.holes, hole{span{int64(len(content)), int64(len(content))}, errShort})
	}
	return p, nil
}

// next returns the offset of the next frame after at, which may begin in the middle of a line. It returns the length of content if there is
// none.
func next(content []byte, at int) int {
	for at++; at < len(content); at++ {
		more := bytes.IndexByte(content[at:], ' ')
		if more < 0 {
			break
		}
		at += more // The first blank of a frame follows its first word.
		from := at - len(putKind)
		if from <= 0 {
			continue
		}
		if _, _, err := parseFrame(content[from:]); err == nil {
			return from
		}
	}
	return len(content)
}

// isTorn reports whether a hole is proven to be the rest of an interrupted write. No frame shows that it was acknowledged, and it has the
// form that a crash leaves: it is cut off at the end of the file, or has whole sectors of zeros. A changed bit leaves neither form. The
// proof is for payloads that are a line of text; for others, more holes count as damage.
func (p parsedLog) isTorn(h hole) bool {
	if h.from < p.proven {
		return false
	}
	atEnd := h.to == int64(len(p.content))
	text := p.content[h.from:h.to]
	if atEnd && errors.Is(h.err, errShort) && bytes.Count(text, []byte("\n")) <= 1 { // A whole frame ends two lines.
		return true
	}
	for from := h.from; from < h.to; {
		to := min(from/sector*sector+sector, h.to)
		if len(bytes.Trim(p.content[from:to], "\x00")) == 0 {
			return true
		}
		from = to
	}
	return false
}

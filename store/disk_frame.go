package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A file of a [Disk] is a row of frames, each a line of text: a checksum, and JSON that says what was written at once.
//
//	00000000 {"format":"volumekit-store/1","base":17}
//	00000000 {"writes":[{"version":18,"event":"Added","object":{...}}]}
//
// The first frame of a file is its head. A frame is there as a whole or not at all.

// diskFormat is the format and its version.
const diskFormat = "volumekit-store/1"

// frame is one line.
type frame struct {
	// Format and Base are of the head alone. Base is the version after which a journal begins, or at which a snapshot is true.
	Format string `json:"format,omitempty"`
	Base   uint64 `json:"base,omitempty"`
	// Writes are writes in a journal, and objects in a snapshot.
	Writes []frameWrite `json:"writes,omitempty"`
	// Objects is of the last frame of a snapshot alone: how many objects were before it, and one, so that it is never zero.
	Objects int `json:"objects,omitempty"`
	// Closed is of the mark of a clean close alone.
	Closed *closedFrame `json:"closed,omitempty"`
}

// closedFrame says with which journal the store was closed, after all of it was synced.
type closedFrame struct {
	Base uint64 `json:"base"` // in the name of the journal
	Size int64  `json:"size"`
	Sum  uint32 `json:"sum"` // of all its bytes
}

// line returns the file that says so.
func (c closedFrame) line() ([]byte, error) {
	payload, err := json.Marshal(frame{Format: diskFormat, Closed: &c})
	return frameLine(payload), err
}

// describes reports whether the journal is still as it was.
func (c closedFrame) describes(base uint64, p parsedFile) bool {
	return base == c.Base && p.length == c.Size && crc32.Checksum(p.data, castagnoli) == c.Sum
}

// frameWrite is one write in a frame.
type frameWrite struct {
	Version uint64          `json:"version"`
	Event   EventType       `json:"event"`
	Object  json.RawMessage `json:"object"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli) // A constant, but for the language.

// frameLine returns the line of payload, which is JSON on one line.
func frameLine(payload []byte) []byte {
	line := fmt.Appendf(nil, "%08x ", crc32.Checksum(payload, castagnoli))
	return append(append(line, payload...), '\n')
}

// headFrame returns the head of a file.
func headFrame(base uint64) []byte {
	return frameLine(fmt.Appendf(nil, `{"format":%q,"base":%d}`, diskFormat, base))
}

// endFrame returns the last frame of a snapshot.
func endFrame(objects int) []byte {
	return frameLine(fmt.Appendf(nil, `{"objects":%d}`, objects+1))
}

// framePayload gathers writes for one frame. The zero value is empty.
type framePayload struct{ text []byte }

// add adds a write, whose object is JSON.
func (p *framePayload) add(version uint64, event EventType, object []byte) {
	opening := `{"writes":[`
	if len(p.text) > 0 {
		opening = ","
	}
	p.text = fmt.Appendf(p.text, `%s{"version":%d,"event":%q,"object":`, opening, version, string(event))
	p.text = append(append(p.text, object...), '}')
}

// line ends the payload and returns its line; nil when it is empty.
func (p *framePayload) line() []byte {
	if len(p.text) == 0 {
		return nil
	}
	return frameLine(append(p.text, "]}"...))
}

// errFrame says that a line is no frame, or not the whole of one.
var errFrame = errors.New("damaged frame")

// parseFrame undoes frameLine. A line with a wrong checksum is an error that matches errFrame; one whose checksum is right
// and that is not understood matches [ErrNewer].
func parseFrame(line []byte) (frame, error) {
	sum, payload, ok := bytes.Cut(line, []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !ok || err != nil || len(sum) != 8 || uint32(want) != crc32.Checksum(payload, castagnoli) {
		return frame{}, errFrame
	}
	var f frame
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return frame{}, fmt.Errorf("%w: %w", ErrNewer, err)
	}
	if f.Format != "" && f.Format != diskFormat {
		return frame{}, fmt.Errorf("format %q: %w", f.Format, ErrNewer)
	}
	return f, nil
}

// parsedFile is what a file holds.
type parsedFile struct {
	data   []byte // all of it
	frames []frame
	// size is where the first line begins that is no frame; the size of the file when all are.
	size int64
	// length is the size of the file.
	length int64
	// rest are the frames after that: not even a power cut leaves such.
	rest []frame
	// err is what is wrong at size; nil when nothing is.
	err error
}

// parseFile parses all lines. It accepts anything.
func parseFile(data []byte) parsedFile {
	p := parsedFile{data: data, length: int64(len(data))}
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		f, err := parseFrame(line)
		if !whole {
			err = errFrame
		}
		switch {
		case err != nil && (p.err == nil || errors.Is(err, ErrNewer)):
			p.err = err
		case err == nil && p.err == nil:
			p.frames = append(p.frames, f)
			p.size += int64(len(line)) + 1
		case err == nil:
			p.rest = append(p.rest, f)
		}
		data = rest
	}
	return p
}

// unwritten reports whether it may be a journal from a version on that was never written to: it has a head, or the beginning of
// one.
func (p parsedFile) unwritten(base uint64) bool {
	switch {
	case errors.Is(p.err, ErrNewer) || len(p.rest) > 0 || len(p.frames) > 1 || p.length > int64(len(headFrame(base))):
		return false
	case len(p.frames) == 1:
		return p.frames[0].Format == diskFormat && p.frames[0].Base == base
	}
	return true
}

// decode returns the object of a write.
func (w frameWrite) decode(kinds *KindTable) (Object, error) {
	var meta struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal(w.Object, &meta); err != nil {
		return nil, fmt.Errorf("%w: object of version %d: %w", errFrame, w.Version, err)
	}
	kind := schema.FromAPIVersionAndKind(meta.APIVersion, meta.Kind)
	if obj := kinds.newObject(kind); obj != nil {
		if err := json.Unmarshal(w.Object, obj); err != nil {
			return nil, fmt.Errorf("%w: object of version %d: %w", errFrame, w.Version, err)
		}
		if obj.GetResourceVersion() != strconv.FormatUint(w.Version, 10) {
			return nil, fmt.Errorf("%w: an object of version %q in a write of version %d", errFrame, obj.GetResourceVersion(), w.Version)
		}
		return obj, nil
	}
	return nil, fmt.Errorf("object of kind %q: %w", kind, ErrNewer)
}

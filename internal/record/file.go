package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

const (
	// format and the version of it open every file.
	format  = "volumekit-record/"
	version = 1
	magic   = format + "1"
	// suffix ends the name of a file with one record; tempPrefix begins the name of a file that is being written.
	suffix     = ".record"
	tempPrefix = ".tmp-"
	// maxSize is the greatest size of a file in bytes. It bounds what a hostile file can cost.
	maxSize = 4 << 20
)

// errDamaged says that a file is not a record.
var errDamaged = errors.New("damaged record")

// fileName returns the name of the file of key. A key may hold anything; the name is its hash.
func fileName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16]) + suffix
}

// encode returns the content of a file: one line of text with version, checksum, length and key, and the payload.
func encode(key string, payload []byte) []byte {
	header := fmt.Sprintf("%s %08x %d %s\n", magic, checksum(key, payload), len(payload), strconv.QuoteToASCII(key))
	return append([]byte(header), payload...)
}

// decode undoes encode and checks everything that encode wrote.
func decode(content []byte) (key string, payload []byte, err error) {
	line, payload, ok := bytes.Cut(content, []byte("\n"))
	if !ok {
		return "", nil, fmt.Errorf("%w: no header", errDamaged)
	}
	fields := strings.SplitN(string(line), " ", 4)
	if len(fields) != 4 || !strings.HasPrefix(fields[0], format) {
		return "", nil, fmt.Errorf("%w: not a record", errDamaged)
	}
	if fields[0] != magic {
		return "", nil, foreignVersion(fields[0])
	}
	key, err = strconv.Unquote(fields[3])
	if err != nil {
		return "", nil, fmt.Errorf("%w: key: %w", errDamaged, err)
	}
	if fields[2] != strconv.Itoa(len(payload)) {
		return "", nil, fmt.Errorf("%w: %d bytes where the header says %s", errDamaged, len(payload), fields[2])
	}
	if fields[1] != fmt.Sprintf("%08x", checksum(key, payload)) {
		return "", nil, fmt.Errorf("%w: wrong checksum", errDamaged)
	}
	return key, payload, nil
}

// foreignVersion is the error of a file that says of itself that it is of another version. A program of a later version
// will know what to do with its own.
func foreignVersion(said string) error {
	n, err := strconv.Atoi(strings.TrimPrefix(said, format))
	if err != nil || n <= version {
		return fmt.Errorf("%w: %q is no version of the format", errDamaged, said)
	}
	return fmt.Errorf("%q: %w", said, ErrNewer)
}

// checksum covers the key too, so that a record cannot pass for another.
func checksum(key string, payload []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum([]byte(key), table), table, payload)
}

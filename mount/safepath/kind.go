package safepath

import "strings"

// Kind is a set of kinds of files.
type Kind uint8

// The kinds. A symbolic link is none of them, since it is neither opened nor followed.
const (
	// Directory is a directory.
	Directory Kind = 1 << iota
	// RegularFile is a file that holds bytes.
	RegularFile
	// Socket is a socket of the Unix domain.
	Socket
	// Fifo is a named pipe.
	Fifo
	// Device is a character device or a block device.
	Device

	// AnyKind is each of them.
	AnyKind Kind = 1<<iota - 1
)

var kindNames = [...]string{"directory", "regular file", "socket", "named pipe", "device"}

// String returns the kinds in words, such as "directory or regular file".
func (k Kind) String() string {
	var words []string
	for i, word := range kindNames {
		if k&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	if len(words) == 0 {
		return "nothing known"
	}
	return strings.Join(words, " or ")
}

package faultrun

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Call is one system call that a thread of the program is about to make.
type Call struct {
	// N is the number of the call, from 1, among all that are counted.
	N int
	// Thread is the thread that makes it; that of a child too.
	Thread int
	// Number is the number of the system call.
	Number uint32
	// Args are its arguments.
	Args [6]uint64
}

// Verdict is what becomes of a call. The zero value lets it happen.
type Verdict struct {
	kill  bool
	errno unix.Errno
	wait  time.Duration
}

// Kill kills the program, with SIGKILL, before the call happens. A child of the program is killed before its next call
// that is counted: no call happens after this one.
func Kill() Verdict { return Verdict{kill: true} }

// Fail makes the call return an error, and not happen.
func Fail(errno unix.Errno) Verdict { return Verdict{errno: errno} }

// Delay lets the call happen after a time. Other calls are not held up.
func Delay(d time.Duration) Verdict { return Verdict{wait: d} }

// A Judge says what becomes of each call. It is asked about one call at a time, in the order in which they are counted;
// the thread that makes the call sleeps meanwhile.
type Judge func(Call) Verdict

// KillBefore kills the program before call n.
func KillBefore(n int) Judge {
	return func(c Call) Verdict { return Verdict{kill: c.N == n} }
}

// FailAt makes call n fail.
func FailAt(n int, errno unix.Errno) Judge {
	return func(c Call) Verdict {
		if c.N == n {
			return Fail(errno)
		}
		return Verdict{}
	}
}

// String returns the name of the call and the files that it is about, as far as they can be told, for a person. It can
// tell them only while the call is being judged.
func (c Call) String() string {
	s, ok := spellings()[c.Number]
	if !ok {
		return "call " + strconv.Itoa(int(c.Number))
	}
	var about []string
	for i, kind := range s.args {
		switch kind {
		case 'p':
			about = append(about, strconv.Quote(c.text(c.Args[i])))
		case 'f':
			about = append(about, c.file(i))
		case 'i':
			about = append(about, requestName(uint32(c.Args[i])))
		case 'x':
			about = append(about, fmt.Sprintf("%#x", uint32(c.Args[i])))
		}
	}
	return s.name + "(" + strings.Join(about, ", ") + ")"
}

// Name returns the name of the system call, or its number where this package has no name for it.
func (c Call) Name() string {
	if s, ok := spellings()[c.Number]; ok {
		return s.name
	}
	return "call " + strconv.Itoa(int(c.Number))
}

// Program returns the name of the program that makes the call, of which the kernel keeps 15 bytes: a child may have another
// one. It can be told only while the call is being judged.
func (c Call) Program() string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.Thread))
	if err != nil {
		return "?"
	}
	return strings.TrimSuffix(string(name), "\n")
}

// file returns the file that descriptor argument i is.
func (c Call) file(i int) string {
	fd := int32(c.Args[i])
	if fd == unix.AT_FDCWD {
		return "."
	}
	target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.Thread, fd))
	if err != nil {
		return strconv.Itoa(int(fd))
	}
	return target
}

// isFile reports whether the call writes to something that has a path on a disk: not to a pipe, a socket, an event
// counter, a terminal or the kernel.
func (c Call) isFile() bool {
	target := c.file(0)
	if !filepath.IsAbs(target) {
		return false
	}
	for _, dir := range []string{"/proc/", "/sys/", "/dev/pts/", "/dev/null", "/dev/tty"} {
		if strings.HasPrefix(target, dir) {
			return false
		}
	}
	return true
}

// text returns the string at an address of the program.
func (c Call) text(address uint64) string {
	if address == 0 {
		return ""
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", c.Thread))
	if err != nil {
		return "?"
	}
	defer memory.Close()
	content := make([]byte, unix.PathMax)
	n, _ := memory.ReadAt(content, int64(address)) // It ends where the memory does, which may be before PathMax.
	before, _, found := bytes.Cut(content[:n], []byte{0})
	if !found {
		return "?"
	}
	return string(before)
}

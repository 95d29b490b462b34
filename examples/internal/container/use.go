package container

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Finding is what one container found when it used one volume.
type Finding struct {
	// Pod is the pod's namespace and name.
	Pod string `json:"pod"`
	// Container is the container that used the volume.
	Container string `json:"container"`
	// Volume is the volume's name in the pod's spec.
	Volume string `json:"volume"`
	// MountPath is where the container sees the volume.
	MountPath string `json:"mountPath"`
	// ReadOnly says that the container may only read.
	ReadOnly bool `json:"readOnly"`
	// Did says what the container could do.
	Did string `json:"did,omitempty"`
	// Error says what failed; empty for no failure.
	Error string `json:"error,omitempty"`
}

// errWritable says that a read-only path is writable.
var errWritable = errors.New("it could be written, though it is read-only")

// Use writes and reads through every path of every container, and removes what it has written.
func (c *Containers) Use() []Finding {
	var findings []Finding
	note := func(b bind, did string, err error) {
		f := Finding{
			Pod: b.pod, Container: b.container, Volume: b.volume, MountPath: b.mountPath, ReadOnly: b.readOnly, Did: did,
		}
		if err != nil {
			f.Did, f.Error = "", err.Error()
		}
		findings = append(findings, f)
	}
	var letters []letter
	for _, b := range c.binds {
		if !b.readOnly && isDir(b.path) {
			l, err := writeLetter(b)
			if err != nil {
				note(b, "", err)
				continue
			}
			letters = append(letters, l)
			note(b, fmt.Sprintf("wrote %d bytes and read them back", len(l.text)), l.readIn(b))
			continue
		}
		did, err := lookInto(b)
		note(b, did, err)
	}
	for _, l := range letters {
		for _, b := range c.binds {
			if l.isFor(b) {
				note(b, "read what container "+l.from.container+" wrote", l.readIn(b))
			}
		}
	}
	for _, l := range letters {
		if err := os.Remove(l.pathIn(l.from)); err != nil {
			note(l.from, "", err)
		}
	}
	return findings
}

// letterPattern is the pattern of letters' names, for os.CreateTemp.
const letterPattern = ".volumekit-quickstart-*"

// letter is a file that one container writes into a volume, for itself and the other containers with the volume.
type letter struct {
	from bind
	name string // unique, because others may use the volume now: pods, containers, a second run
	text string
}

// writeLetter writes a new file through b.
func writeLetter(b bind) (letter, error) {
	l := letter{from: b, text: fmt.Sprintf("written by container %s of pod %s through %s\n", b.container, b.pod, b.mountPath)}
	f, err := os.CreateTemp(b.path, letterPattern)
	if err != nil {
		return l, err
	}
	l.name = filepath.Base(f.Name())
	_, err = f.WriteString(l.text)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(l.pathIn(b)) // the write has failed, and its error is returned
	}
	return l, err
}

func (l letter) pathIn(b bind) string {
	return filepath.Join(b.path, l.name)
}

// isFor reports whether b binds the volume of the letter.
func (l letter) isFor(b bind) bool {
	return b.pod == l.from.pod && b.volume == l.from.volume && b.path != l.from.path
}

func (l letter) readIn(b bind) error {
	text, err := os.ReadFile(l.pathIn(b))
	if err == nil && string(text) != l.text {
		err = fmt.Errorf("read %q where %q was written", text, l.text)
	}
	return err
}

// lookInto reads a volume that it must not write to: a read-only one, or one that is a single file.
func lookInto(b bind) (string, error) {
	info, err := os.Stat(b.path)
	if err != nil {
		return "", err
	}
	did := "found a " + kindOf(info.Mode())
	switch {
	case info.IsDir():
		entries, err := os.ReadDir(b.path)
		if err != nil {
			return "", err
		}
		did = fmt.Sprintf("read a directory (entries: %d)", len(entries))
	case info.Mode().IsRegular():
		n, err := readStart(b.path)
		if err != nil {
			return "", err
		}
		did = fmt.Sprintf("read %d bytes of a file", n)
	default:
		return did, nil
	}
	if !b.readOnly {
		return did, nil
	}
	return did + "; writing was refused: read-only", expectReadOnly(b, info)
}

// expectReadOnly tries to write, and fails unless the error is EROFS.
func expectReadOnly(b bind, info fs.FileInfo) error {
	var f *os.File
	var err error
	if info.IsDir() {
		f, err = os.CreateTemp(b.path, letterPattern)
	} else {
		f, err = os.OpenFile(b.path, os.O_WRONLY, 0)
	}
	switch {
	case errors.Is(err, syscall.EROFS):
		return nil
	case err != nil:
		return fmt.Errorf("it should be read-only: %w", err)
	}
	err = f.Close()
	if info.IsDir() {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return errors.Join(errWritable, err)
}

// readStart reads the beginning of a file, and returns the number of bytes.
func readStart(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	return io.Copy(io.Discard, io.LimitReader(f, 1<<20))
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeCharDevice != 0:
		return "character device"
	case mode&fs.ModeDevice != 0:
		return "block device"
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	}
	return "file"
}

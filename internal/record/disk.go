package record

import (
	"io/fs"

	"github.com/volumekit/volumekit/internal/journal"
)

// disk has the system calls of a [Dir] on its directory. Each method that changes something makes one call: a test can simulate a
// power cut between any two.
type disk interface {
	journal.Files

	// stat returns the type and size of the file with a name. It follows no link.
	stat(name string) (fs.FileInfo, error)
	// mkdir makes a directory.
	mkdir(name string) error
	// readRecord returns the content of a file in which earlier versions kept one record.
	readRecord(name string) ([]byte, error)
}

// kernelDisk implements disk with the kernel's system calls.
type kernelDisk struct {
	journal.Directory

	at directory
}

func (d kernelDisk) stat(name string) (fs.FileInfo, error)  { return d.Root.Lstat(name) }
func (d kernelDisk) mkdir(name string) error                { return d.Root.Mkdir(name, 0o700) }
func (d kernelDisk) readRecord(name string) ([]byte, error) { return d.at.read(name) }

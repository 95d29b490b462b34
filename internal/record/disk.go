package record

import (
	"io/fs"

	"github.com/volumekit/volumekit/internal/journal"
)

// disk is what a [Dir] does to its directory, one system call in each method that changes something: a test cuts the power between
// any two.
type disk interface {
	journal.Files

	// stat returns what a name stands for. It follows no link.
	stat(name string) (fs.FileInfo, error)
	// mkdir makes a directory.
	mkdir(name string) error
	// readRecord returns the content of a file that earlier versions have kept for one record.
	readRecord(name string) ([]byte, error)
}

// kernelDisk is the disk that the kernel offers.
type kernelDisk struct {
	journal.Directory

	at directory
}

func (d kernelDisk) stat(name string) (fs.FileInfo, error)  { return d.Root.Lstat(name) }
func (d kernelDisk) mkdir(name string) error                { return d.Root.Mkdir(name, 0o700) }
func (d kernelDisk) readRecord(name string) ([]byte, error) { return d.at.read(name) }

// Package usage measures how much disk space a directory tree occupies, as du(1) does.
//
// It is for volumes that share a filesystem with others, whose use statfs cannot tell. What is counted is what is
// allocated: a sparse file counts only its blocks, and holes nothing. A file with several hard links counts once. What
// is on another filesystem, be it a directory or a file that is mounted there, does not count, nor does what is below
// it. Symbolic links are not followed.
//
// The tree may change while it is measured: what vanishes is left out. Everything below the root is opened relative to
// the descriptor of its directory, so that nobody who can write there can lead the walk out of the tree, and depth does
// not cost descriptors.
package usage

import (
	"errors"
)

// Usage is what a tree occupies.
type Usage struct {
	// Bytes is the number of bytes that are allocated: blocks of 512 bytes, including those of directories.
	Bytes int64
	// Inodes is the number of files, directories and links of every kind, the root included.
	Inodes int64
}

// ErrChanged says that a directory was moved out of the tree while the walk was deep below it, so that the walk could
// not find its way back. Measure again.
var ErrChanged = errors.New("the tree was moved while it was measured")

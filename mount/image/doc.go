// Package image keeps disks in files: the images of one directory, which are made whole or not at all, and what the filesystem
// below can do for them that package os does not know.
//
// # A directory of images
//
// Every name is one element of a path, is opened beneath a descriptor of the directory ([OpenDir]), and must be a regular file that
// no symbolic link leads to. A new image is made under another name, locked, synced and then renamed:
//
//	dir, err := image.MakeDir("/srv/images")
//	partial, err := dir.Begin("1.partial")  // what a killed process has left is removed; mount.ErrTransient: somebody makes it
//	defer partial.Close()                   // and with it the lock
//	// fill and sync partial
//	err = dir.Publish("1.partial", "1.img") // never in the place of another
//
// [With] opens one image for one call, and returns when its context ends, also while the filesystem hangs.
//
// # What is in the files
//
// [Allocate] and [Extend] take space and make a file longer, each in one step; [Share] makes a copy that shares its blocks until
// one is written to; [CopyData] copies what is no hole.
//
// It works on Linux. Elsewhere what takes a system call of its own is an error that matches mount.ErrUnsupported.
package image

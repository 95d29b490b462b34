// Package image keeps disk images in one directory. An image is created completely or not at all. The package also has
// file operations that package os lacks.
//
// # A directory of images
//
// Every name is one path element and is opened beneath a descriptor of the directory ([OpenDir]). It must be a regular file to
// which no symbolic link leads. A new image is made under another name, locked, synced and then renamed:
//
//	dir, err := image.MakeDir("/srv/images")
//	partial, err := dir.Begin("1.partial")  // what a killed process has left is removed; mount.ErrTransient: another call or process makes it
//	defer partial.Close()                   // and with it the lock
//	// fill and sync partial
//	err = dir.Publish("1.partial", "1.img") // never in the place of another
//
// [With] opens one image for one call. It returns when its context ends, also while the filesystem hangs.
//
// # What is in the files
//
// [Allocate] and [Extend] reserve space and make a file longer, each in one step. [Share] makes a copy that shares its blocks
// until one is written. [CopyData] copies everything but holes.
//
// It works on Linux. Elsewhere, functions that need a system call of their own return an error that matches
// mount.ErrUnsupported.
package image

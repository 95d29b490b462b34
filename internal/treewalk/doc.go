// Package treewalk walks a directory tree with several workers and never leaves it. The packages volume/ownership and
// volume/usage use it.
//
// # A walk
//
//	tree, err := treewalk.Open(root, treewalk.Options{})
//	if err != nil {
//		return err
//	}
//	defer tree.Close()
//	// tree.Stat() describes the root, which no visitor gets.
//	err = tree.Walk(ctx, func() treewalk.Visitor { return &visitor{} })
//
// Each worker has a [Visitor] of its own, so visitors need no lock. The walk visits every entry beneath the root once, with
// the result of statx. It visits a directory before its content. The order is otherwise undefined. It does not visit the
// root: the caller can change the root after Walk.
//
// # Words
//
// The root is the file or directory at the caller's path. An entry is a name in a directory beneath it. To pin an entry is
// to open it without access (O_PATH): the visitor then changes the inode that it has read, also if another process replaces
// the name. A foreign entry is the root of another mount. A vanished entry was there when its directory was read, and is
// now gone.
//
// # Guarantees
//
// The walk follows no symbolic link, not even one that another process puts in place while it runs: it opens and reads
// each entry by one name beneath an open directory. It crosses no mount, neither of another filesystem nor a bind of the
// same one, and does not wait for mounted filesystems. It keeps at most Options.MaxOpen directories open, and a few for
// each worker, in a tree of any depth and width. It finds a directory that it has closed again from the root, and compares
// its device and inode. Memory grows with the number of directories that wait to be read, not with that of files. The walk
// allocates nothing for a file.
//
// The tree may change during the walk. Vanished entries are counted and are no error. New entries may or may not be
// visited. A directory that is moved within the tree may be missed or visited twice. If the walk needs a directory that it
// has closed and that was moved away, it fails with an error that matches [ErrMoved]: the directory may still exist.
//
// # How it ends
//
// When the context ends, every worker stops before its next entry. A system call on a hung filesystem cannot be stopped,
// neither in Open nor in Walk. A caller that must not wait for it calls them in a goroutine that it can abandon.
//
// # When not to use it
//
// For a small tree that no other process writes to, filepath.WalkDir is simpler. The package cannot delete a tree. It is
// empty on other systems than Linux.
package treewalk

// Package treewalk goes through a directory tree, fast and without ever leaving it. It is what the packages
// volume/ownership and volume/usage have in common.
//
// # A walk
//
//	tree, err := treewalk.Open(root, treewalk.Options{})
//	if err != nil {
//		return err
//	}
//	defer tree.Close()
//	// tree.Stat() describes the root, which no visitor is told of.
//	err = tree.Walk(ctx, func() treewalk.Visitor { return &visitor{} })
//
// Several workers share the work. Each has a [Visitor] of its own, which therefore needs no lock: it is told of every
// entry beneath the root, once, with what statx says of it. A directory is told of before what is in it; what the root
// must have done to it last, its owner does when Walk has returned. The order is otherwise undefined.
//
// # Words
//
// The root is the file or directory that is given. An entry is a name in a directory beneath it. To pin an entry is to
// open it without access (O_PATH), so that what was looked at is also what is changed, whatever its name leads to by then.
// A foreign entry is the root of another mount. A vanished one was there when its directory was read, and is not any more.
//
// # What is guaranteed
//
// The walk follows no symbolic link, not even one that is swapped in while it runs: everything is opened and asked beneath
// an open directory by one name. It crosses no mount, neither one of another filesystem nor a bind of the same one, and
// does not wait for what is mounted there. It has at most Options.MaxOpen directories open, and a few for each worker,
// however deep and wide the tree is: those that it will need again it finds from the root, and proves them to be the same
// by device and inode. Memory grows with the number of directories that wait to be entered, and not with that of files.
// It allocates nothing for a file.
//
// A tree may change under the walk. What vanishes is counted and is no error; what is created meanwhile may or may not be
// seen; a directory that is moved within the tree may be missed or be seen twice. One that is moved away while the walk
// needs it and has closed it is a failure that matches [ErrMoved]: whether it is gone is unknown, and that is not the same
// as gone.
//
// # How it ends
//
// When the context ends, every worker stops before its next entry. A system call on a hung filesystem cannot be stopped,
// neither in Open nor in Walk: who must not wait for it calls them in a goroutine that can be abandoned.
//
// # When not to use it
//
// For a small tree that no other process writes to, filepath.WalkDir is simpler. To delete a tree, use something
// that unlinks. The package is for Linux; elsewhere it is empty.
package treewalk

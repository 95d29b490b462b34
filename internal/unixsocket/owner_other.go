//go:build !unix

package unixsocket

import "io/fs"

// ownedByRootOrUs returns false: this platform has no owner that proves who can write.
func ownedByRootOrUs(fs.FileInfo) bool { return false }

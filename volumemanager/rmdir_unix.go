//go:build unix

package volumemanager

import "syscall"

// rmdir removes an empty directory and nothing else; os.Remove would remove a file as well.
func rmdir(path string) error { return syscall.Rmdir(path) }

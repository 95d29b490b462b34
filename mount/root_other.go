//go:build !linux

package mount

import "os"

func (m MountPoint) isRoot(*os.File) (bool, error) { return false, unsupported() }

//go:build !unix

package volumemanager

import "errors"

// rmdir removes nothing: no volume is ever set up here.
func rmdir(string) error { return errors.ErrUnsupported }

func isMissing(error) bool { return false }

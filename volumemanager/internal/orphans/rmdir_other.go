//go:build !unix

package orphans

import "errors"

// rmdir removes nothing: no volume is ever set up here.
func rmdir(string) error { return errors.ErrUnsupported }

func isOccupied(error) bool { return false }

func isMissing(error) bool { return false }

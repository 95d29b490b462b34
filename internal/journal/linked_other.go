//go:build !unix

package journal

import "os"

func isLinked(*os.File) (bool, error) { return true, nil }

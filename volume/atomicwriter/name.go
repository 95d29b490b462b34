package atomicwriter

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

const (
	dataLink    = "..data"     // leads to the published set
	newDataLink = "..data_tmp" // becomes dataLink
	ownPrefix   = ".."         // of every name of the writer
	// stamp is the beginning of a set's name, as a layout of package time. Digits follow.
	stamp = "..2006_01_02_15_04_05."
	// randomDigits and digestDigits are the numbers of those digits. Kubernetes has random ones only, ten at most.
	randomDigits = 10
	digestDigits = 20
)

// newSetName returns a name for the directory of a set. No other process can foresee it.
func newSetName(now time.Time, digest uint64) string {
	return fmt.Sprintf("%s%0*d%0*d", now.UTC().Format(stamp), randomDigits, rand.Uint32(), digestDigits, digest)
}

// isSetName reports whether name is that of a set, be it written by this package or by Kubernetes.
func isSetName(name string) bool {
	if len(name) <= len(stamp) {
		return false
	}
	if _, err := time.Parse(stamp, name[:len(stamp)]); err != nil {
		return false
	}
	return strings.Trim(name[len(stamp):], "0123456789") == ""
}

// hasDigest reports whether name is that of a set with this digest.
func hasDigest(name string, digest uint64) bool {
	return isSetName(name) && len(name) == len(stamp)+randomDigits+digestDigits &&
		strings.HasSuffix(name, fmt.Sprintf("%0*d", digestDigits, digest))
}

package store

import (
	"crypto/rand"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// newUID returns a random UUID of version 4, as RFC 9562 section 5.4 defines it.
func newUID() types.UID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

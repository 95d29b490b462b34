package etcd

import (
	"fmt"
	"strconv"

	"github.com/volumekit/volumekit/store"
)

// version is a revision of etcd and the place of a write in its transaction. All writes of a transaction have one revision.
type version struct {
	revision int64
	place    int64
}

// lastPlace is larger than the place of any write in a transaction. So the versions after it are those of later revisions. etcd allows
// fewer writes in a transaction (128 by default).
const (
	placeBits = 10
	lastPlace = 1<<placeBits - 1
)

// after returns the version at the end of a revision.
func after(revision int64) version { return version{revision, lastPlace} }

// String returns the resource version: a number that grows, like those of Kubernetes.
func (v version) String() string { return strconv.FormatInt(v.revision<<placeBits|v.place, 10) }

// parseVersion undoes String. The error matches store.ErrInvalid.
func parseVersion(text string) (version, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return version{}, fmt.Errorf("version %q is none of this store: pass that of a list: %w", text, store.ErrInvalid)
	}
	return version{n >> placeBits, n & lastPlace}, nil
}

// next returns the first revision that may have writes after v. It is never zero, which means the newest revision to etcd.
func (v version) next() int64 {
	if v.place == lastPlace {
		return v.revision + 1
	}
	return max(v.revision, 1)
}

// covers reports whether w is v or comes before it.
func (v version) covers(w version) bool {
	return w.revision < v.revision || w.revision == v.revision && w.place <= v.place
}

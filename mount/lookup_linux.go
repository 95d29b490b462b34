package mount

import (
	"context"
	"fmt"
)

// lookupID is LookupID.
func (m *Mounter) lookupID(uniqueID uint64) (MountPoint, error) {
	return MountPoint{}, fmt.Errorf("mount %d: unique ids: %w", uniqueID, ErrUnsupported)
}

// exists reports whether the mount with the identity is still in this mount namespace, at whatever path. It asks for the
// unique id where both sides have one, which takes about a microsecond, and else reads the mount table. Nothing that it
// does can wait for a filesystem.
func (m *Mounter) exists(ctx context.Context, id Identity) (bool, error) {
	table, err := m.readTable(ctx)
	if err != nil {
		return false, err
	}
	for _, mp := range table {
		if id.Is(mp) {
			return true, nil
		}
	}
	return false, nil
}

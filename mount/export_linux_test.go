package mount

import "context"

// IsMountPointHere is IsMountPoint in the goroutine of the caller, which may be locked to a thread.
func (m *Mounter) IsMountPointHere(ctx context.Context, name string) (bool, error) {
	return m.isMountPoint(ctx, &steps{}, name)
}

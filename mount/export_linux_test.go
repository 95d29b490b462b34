package mount

import "context"

// IsMountPointHere is IsMountPoint in the goroutine of the caller, which may be locked to a thread.
func (m *Mounter) IsMountPointHere(ctx context.Context, name string) (bool, error) {
	return m.isMountPoint(ctx, &steps{}, name)
}

// ForceHere is what Unmount does when its patience has ended and no plain unmount is under way.
func (m *Mounter) ForceHere(ctx context.Context, name string) error {
	p, err := m.openPlace(context.WithoutCancel(ctx), &steps{}, name)
	if err != nil {
		return err
	}
	defer p.close()
	t := takedown{place: p}
	return t.force(ctx, &steps{}, nil)
}

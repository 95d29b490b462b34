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

// CreateHere makes the superblock of the request without looking for SELinux, and mounts it nowhere.
func (m *Mounter) CreateHere(ctx context.Context, request Request) error {
	plan, err := request.Plan()
	if err != nil {
		return err
	}
	tree, err := m.newTree(ctx, &steps{}, &plan)
	if err == nil {
		closeFD(tree)
	}
	return err
}

// OldData returns the options as mount(2) takes them.
func (r Request) OldData() (string, error) {
	plan, err := r.Plan()
	if err != nil {
		return "", err
	}
	_, data, err := plan.oldData()
	return data, err
}

// StagePath is where a helper mounts for the target.
func (m *Mounter) StagePath(target string) string { return m.stagePath(target) }

package mount

import (
	"context"

	"golang.org/x/sys/unix"
)

// IsMountPointHere is IsMountPoint in the goroutine of the caller, which may be locked to a thread.
func (m *Mounter) IsMountPointHere(ctx context.Context, name string) (bool, error) {
	return m.reader.isMountPoint(ctx, name)
}

// ForceHere is what Unmount does when its patience has ended and no plain unmount is under way.
func (m *Mounter) ForceHere(ctx context.Context, name string) error {
	p, err := m.reader.openParent(context.WithoutCancel(ctx), name)
	if err != nil {
		return err
	}
	defer p.close()
	t := topUnmount{entry: p}
	return t.force(ctx, nil)
}

// CreateHere makes the superblock of the request without looking for SELinux, and mounts it nowhere.
func (m *Mounter) CreateHere(ctx context.Context, request Request) error {
	plan, err := request.Plan()
	if err != nil {
		return err
	}
	tree, err := m.changer.newTree(ctx, &plan)
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
func (m *Mounter) StagePath(target string) string { return m.helpers.stagePath(target) }

// TopUnmount unmounts one mount in steps. A test can act between them.
type TopUnmount struct {
	*topUnmount
	ctx context.Context //nolint:containedctx // It is the test's.
}

// BeginUnmount prepares to unmount the uppermost mount at the path, which must be the expected one.
func (m *Mounter) BeginUnmount(ctx context.Context, name string, expect Identity) (*TopUnmount, error) {
	p, err := m.reader.openParent(ctx, name)
	if err != nil {
		return nil, err
	}
	top, err := p.findExpected(ctx, expect)
	return &TopUnmount{&topUnmount{entry: p, options: UnmountOptions{Expect: expect}, top: top}, ctx}, err
}

// Mark is one umount2 call of umountExpected.
func (t *TopUnmount) Mark() error { return t.umount(t.ctx, unix.MNT_EXPIRE) }

// CheckOnTop is the check between the two calls.
func (t *TopUnmount) CheckOnTop() error { return t.checkOnTop(t.ctx) }

// Close closes the descriptors.
func (t *TopUnmount) Close() { t.close() }

// VerifyGone is the check after an unmount of the mount with the unique id. 0: a mount without one.
func (m *Mounter) VerifyGone(ctx context.Context, name string, id uint64) error {
	return m.verifyGone(ctx, name, []topMount{{mounted: true, id: id}})
}

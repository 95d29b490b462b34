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
	p, err := m.reader.openPlace(context.WithoutCancel(ctx), name)
	if err != nil {
		return err
	}
	defer p.close()
	t := takedown{place: p}
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

// Takedown is the end of one mount, in steps, so that a test can do something between them.
type Takedown struct {
	*takedown
	ctx context.Context //nolint:containedctx // It is the test's.
}

// Takedown begins the end of the mount that is uppermost at the path and must be the one that is expected.
func (m *Mounter) Takedown(ctx context.Context, name string, expect Identity) (*Takedown, error) {
	p, err := m.reader.openPlace(ctx, name)
	if err != nil {
		return nil, err
	}
	top, err := p.lookFor(ctx, expect)
	return &Takedown{&takedown{place: p, options: UnmountOptions{Expect: expect}, top: top}, ctx}, err
}

// Mark is one of the calls of umountMeant, and reports whether that went well: no mount was taken off.
func (t *Takedown) Mark() error { return t.umount(t.ctx, unix.MNT_EXPIRE) }

// CheckOnTop is the look between two calls.
func (t *Takedown) CheckOnTop() error { return t.checkOnTop(t.ctx) }

// Close ends it.
func (t *Takedown) Close() { t.close() }

// VerifyGone is the look after an unmount that has taken off the mount with the unique id; 0 stands for one without.
func (m *Mounter) VerifyGone(ctx context.Context, name string, id uint64) error {
	return m.verifyGone(ctx, name, []seen{{mounted: true, id: id}})
}

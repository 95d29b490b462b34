package mount

import (
	"context"
	"errors"
)

// Stack returns the mounts at path that lie on each other there, the uppermost first; none when nothing is mounted at path. It
// is for who must know all that [Interface].Unmount would take off. Where m has a method Stack of this kind, as a [Mounter]
// does, that is asked, which takes the same time however many mounts there are; else the mount table is.
func Stack(ctx context.Context, m Interface, path string) ([]MountPoint, error) {
	if s, ok := m.(interface {
		Stack(ctx context.Context, path string) ([]MountPoint, error)
	}); ok {
		return s.Stack(ctx, path)
	}
	return stackInTable(ctx, m.List, path)
}

// Stack is that of the package. Where the kernel has no unique ids it reads the mount table.
func (m *Mounter) Stack(ctx context.Context, name string) ([]MountPoint, error) {
	name, err := cleanPath("path", name)
	if err != nil {
		return nil, err
	}
	top, err := m.Lookup(ctx, name)
	if errors.Is(err, ErrNotMounted) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	stack, err := m.reader.stackBelow(top)
	if errors.Is(err, ErrUnsupported) {
		return stackInTable(ctx, m.reader.readTable, name)
	}
	return stack, err
}

// stackInTable returns the mounts that the table has at the path, the last first.
func stackInTable(ctx context.Context, list func(context.Context) ([]MountPoint, error), path string) ([]MountPoint, error) {
	table, err := list(ctx)
	if err != nil {
		return nil, err
	}
	var stack []MountPoint
	for top, found := lookup(table, path); found; top, found = parentAt(table, top) {
		stack = append(stack, top)
	}
	return stack, nil
}

// parentAt returns the mount that m lies on, when that is at the same path.
func parentAt(table []MountPoint, m MountPoint) (MountPoint, bool) {
	for i := range table {
		if table[i].ID == m.ParentID && table[i].Path == m.Path && m.ID != m.ParentID {
			return table[i], true
		}
	}
	return MountPoint{}, false
}

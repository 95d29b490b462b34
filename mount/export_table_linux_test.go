package mount

import "context"

// HasMountEvents reports whether the kernel tells which mounts come and go.
func HasMountEvents() bool {
	fd, err := openMountEvents()
	if err == nil {
		closeFD(fd)
	}
	return err == nil
}

// HasFacts reports whether the kernel gives all facts of a mount by its unique id.
func (m *Mounter) HasFacts() bool {
	ids, err := listMounts(0)
	if err != nil {
		return false
	}
	_, err = m.facts(ids[len(ids)-1])
	return err == nil
}

// Exists reports whether the mount with the identity is there.
func (m *Mounter) Exists(ctx context.Context, id Identity) (bool, error) { return m.exists(ctx, id) }

// Bounds of the kept table.
const (
	MaxTableAge  = maxTableAge
	MaxRefsAsked = maxRefsAsked
)

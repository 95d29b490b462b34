package atomicwriter

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// sameMount compares the mounts that two descriptors were opened on. Device numbers do not tell: a bind has those of its
// source.
func sameMount(a, b int) (bool, error) {
	one, err := mountID(a)
	if err != nil {
		return false, err
	}
	two, err := mountID(b)
	if err != nil {
		return false, err
	}
	return bytes.Equal(one, two), nil
}

// mountID reads the id from the line "mnt_id:" of proc(5).
func mountID(fd int) ([]byte, error) {
	name := fmt.Sprintf("/proc/self/fdinfo/%d", fd)
	info, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(info) {
		if id, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return bytes.TrimSpace(id), nil
		}
	}
	return nil, fmt.Errorf("%s has no mnt_id: %w", name, errors.ErrUnsupported)
}

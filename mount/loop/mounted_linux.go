package loop

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func fileMountedAt(path string) (string, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(unix.AT_FDCWD, path, flags, 0, &st); err != nil {
		return "", fmt.Errorf("statx: %w", err)
	}
	name := fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", st.Dev_major, st.Dev_minor)
	content, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotAttached, err)
	}
	return strings.TrimSuffix(string(content), "\n"), nil
}

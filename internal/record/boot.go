package record

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// BootID returns the kernel's id of this boot, which changes with each boot. Store it in records of objects that end with the boot,
// such as mounts: if the directory is not on a tmpfs, it still has the records afterwards. Only Linux has the id: elsewhere the error
// matches [ErrUnsupported].
func BootID() (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("boot id on %s: %w", runtime.GOOS, ErrUnsupported)
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id, without which records of an earlier boot cannot be recognised: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

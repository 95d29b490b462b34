package record

import (
	"fmt"
	"os"
	"strings"
)

// BootID returns the kernel's id of this boot, which changes with each boot. Store it in records of objects that end with the boot,
// such as mounts: if the directory is not on a tmpfs, it still has the records afterwards. Only Linux has the id.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id, without which records of an earlier boot cannot be recognised: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

package record

import (
	"fmt"
	"os"
	"strings"
)

// BootID returns the kernel's id of this boot, which changes with each boot. It is for records of what ends with the boot, such as
// mounts: a directory that is not on a tmpfs still has them afterwards. Only Linux has it.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id, without which records of an earlier boot cannot be recognised: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

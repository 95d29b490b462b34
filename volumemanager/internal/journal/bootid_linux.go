package journal

import (
	"fmt"
	"os"
	"strings"
)

// bootID returns the kernel's id of this boot. It changes with each boot.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id, without which records cannot be kept (set NoRecords): %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

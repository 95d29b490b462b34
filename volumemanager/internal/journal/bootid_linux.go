package journal

import (
	"fmt"
	"os"
	"strings"
)

// bootID returns what the kernel calls this boot; it is another one after each boot.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id, without which records cannot be kept (set NoRecords): %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

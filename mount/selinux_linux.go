package mount

import (
	"fmt"
	"os"
	"strings"
)

// checkSELinux refuses a label where the kernel runs no SELinux: a filesystem may ignore an option that it does not know,
// and the workload would then find files that it may not read. The kernel lists selinuxfs only while SELinux is on.
func (p *Plan) checkSELinux() error {
	if p.SELinuxContext == "" {
		return nil
	}
	content, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("looking for SELinux: %w", err)
	}
	if !strings.Contains(string(content), "\tselinuxfs\n") {
		return fmt.Errorf("the kernel runs no SELinux, and the label %q was asked for: %w", p.SELinuxContext, ErrUnsupported)
	}
	return nil
}

// quotedContext is the label for mount(2), whose options are one string. Only SELinux understands the quotes.
func (p *Plan) quotedContext() string { return `context="` + p.SELinuxContext + `"` }

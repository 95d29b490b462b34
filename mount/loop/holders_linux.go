package loop

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// These limit the search for the holders of a device. The search only makes messages better, so it may miss some.
const (
	maxHolders = 4
	maxProcess = 4096
)

// processes lists the processes of /proc, this one first.
func processes() []int {
	pids := []int{os.Getpid()}
	dir, err := os.Open("/proc")
	if err != nil {
		return pids
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // a partial list is enough
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != os.Getpid() && len(pids) < maxProcess {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids[1:])
	return pids
}

// mountedBy finds the mounts of a device in every mount namespace that this process can see.
func mountedBy(device Device) []Holder {
	var holders []Holder
	seen := map[string]bool{}
	for _, pid := range processes() {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		namespace, err := os.Readlink(filepath.Join(proc, "ns/mnt"))
		if err != nil || seen[namespace] {
			continue
		}
		seen[namespace] = true
		content, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
		if err != nil {
			continue
		}
		holders = append(holders, mountsOf(device, pid, content)...)
		if len(holders) >= maxHolders {
			return holders[:maxHolders]
		}
	}
	return holders
}

// mountsOf finds a device in a mount table. It also compares the path of the device, because a btrfs shows a device number
// of its own there.
func mountsOf(device Device, pid int, table []byte) []Holder {
	var holders []Holder
	number := fmt.Sprintf("%d:%d", device.Major, device.Minor)
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[2] == number || slices.Contains(fields[5:], device.Path)) {
			holders = append(holders, Holder{PID: pid, MountPath: unescape(fields[4])})
		}
	}
	return holders
}

// unescape replaces the kernel's escapes for blanks, tabs, newlines and backslashes.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// openedBy finds processes that have the node of a device open.
func openedBy(device Device) []Holder {
	var holders []Holder
	for _, pid := range processes() {
		if len(holders) < maxHolders && hasOpen(pid, device.Path) {
			holders = append(holders, Holder{PID: pid})
		}
	}
	return holders
}

func hasOpen(pid int, path string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	opened, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer opened.Close()
	names, _ := opened.Readdirnames(-1) // a partial list is enough
	return slices.ContainsFunc(names, func(name string) bool {
		target, err := os.Readlink(filepath.Join(dir, name))
		return err == nil && target == path
	})
}

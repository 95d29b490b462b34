package volumetest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// leakLabel is the profiler label that every goroutine of a case inherits.
const leakLabel = "volumetest"

// defaultLeakTimeout is how long what a call has started or opened may outlive the call.
const defaultLeakTimeout = 5 * time.Second

// leakTimeout is how long the cases of this suite wait for what is about to end.
func (e *env) leakTimeout() time.Duration { return cmp.Or(e.config.leakTimeout, defaultLeakTimeout) }

// lasting returns what look finds until ctx ends, "" once it finds nothing. What is about to go is given time to, and so is a
// device that another test of the process has open for a moment.
func lasting(ctx context.Context, look func() string) string {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		left := look()
		if left == "" {
			return ""
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return left
		}
	}
}

// goroutinesLeft returns the stacks of the goroutines that carry the label of a case, but for the one that runs it.
func goroutinesLeft(ctx context.Context, id string) string {
	return lasting(ctx, func() string { return labelledStacks(id) })
}

// openFilesLeft returns the open files that were not open before.
func openFilesLeft(ctx context.Context, root string, before []string) string {
	return lasting(ctx, func() string {
		left := slices.DeleteFunc(openFiles(root), func(file string) bool { return slices.Contains(before, file) })
		return strings.Join(left, ", ")
	})
}

// labelledStacks reads the profile of all goroutines and returns the records with the label, without the caller's own.
func labelledStacks(id string) string {
	var profile, left strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return fmt.Sprintf("reading the goroutine profile: %v", err)
	}
	label := fmt.Sprintf("%q:%q", leakLabel, id)
	for record := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(record, label) && !strings.Contains(record, "volumetest.labelledStacks") {
			left.WriteString(record + "\n")
		}
	}
	return left.String()
}

// openFiles returns the descriptors of this process that lie beneath root, are loop devices or are mounts in the making.
func openFiles(root string) []string {
	return descriptorsThat(func(target string) bool {
		beneath := target == root || strings.HasPrefix(target, root+"/")
		return beneath || strings.HasPrefix(target, "/dev/loop") || strings.Contains(target, "[fscontext]")
	})
}

// descriptors returns the open descriptors of this process, but for those of the runtime's poller, and the mount table, which a
// mount.Mounter keeps open for as long as it can be reached.
func descriptors() []string {
	return descriptorsThat(func(target string) bool {
		return !strings.HasPrefix(target, "anon_inode:[event") && !strings.HasSuffix(target, "/mountinfo")
	})
}

// descriptorsThat returns the open descriptors of this process whose target is wanted, each as number and target. It is empty
// where the system does not tell.
func descriptorsThat(wanted func(target string) bool) []string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var files []string
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && wanted(target) {
			files = append(files, entry.Name()+" "+target)
		}
	}
	return files
}

// loopDevices returns the loop devices of this machine whose file lies beneath root, each with its file. It is empty where
// the system does not tell.
func loopDevices(root string) []string {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil
	}
	var found []string
	for _, name := range files {
		backing, err := os.ReadFile(name)
		if file := strings.TrimSpace(string(backing)); err == nil && strings.HasPrefix(file, root+"/") {
			found = append(found, strings.Split(name, "/")[3]+" "+file)
		}
	}
	return found
}

// loopDevicesLeft returns the loop devices that the case has left.
func loopDevicesLeft(ctx context.Context, root string) string {
	return lasting(ctx, func() string { return strings.Join(loopDevices(root), ", ") })
}

package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestMain runs everything in a mount namespace of its own and fails when mounts or loop devices are left over.
func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // logging costs nothing here: in favour of Kubernetes
	klog.SetOutput(io.Discard)
	mounttest.Main(m)
}

func must(tb testing.TB, err error) {
	if err != nil {
		tb.Helper()
		tb.Fatal(err)
	}
}

// want is err, or an error when the answer is not the one that is expected.
func want(ok bool, err error) error {
	if err == nil && !ok {
		return fmt.Errorf("wrong answer")
	}
	return err
}

// deadline is the context that a caller of ours has: one that ends some time.
func deadline(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

// scratch is a directory for images and mount points, which goes with the benchmark.
func scratch(tb testing.TB) string {
	dir, err := os.MkdirTemp(os.Getenv("BENCH_DIR"), "scratch-")
	must(tb, err)
	tb.Cleanup(func() { must(tb, os.RemoveAll(dir)) })
	return dir
}

// keep makes a directory and fills it, unless an earlier process of the same run has done so: run.sh names a directory
// in BENCH_DIR and removes it at its end. Without that, what is made goes with the benchmark.
func keep(tb testing.TB, name string, fill func(dir string)) string {
	base := os.Getenv("BENCH_DIR")
	if base == "" {
		base = scratch(tb)
	}
	dir := filepath.Join(base, name)
	if _, err := os.Stat(dir + ".ready"); err == nil {
		return dir
	}
	must(tb, os.Mkdir(dir, 0o755))
	fill(dir)
	unix.Sync()
	must(tb, os.WriteFile(dir+".ready", nil, 0o644))
	return dir
}

// treeCase is a tree of files: "nested" has 100 files in a directory, "flat" all in one.
type treeCase struct {
	shape string
	files int
}

var treeCases = []treeCase{{"nested", 10_000}, {"nested", 200_000}, {"flat", 50_000}}

func (c treeCase) String() string { return fmt.Sprintf("tree=%s/files=%d", c.shape, c.files) }

// tree returns the directory of c.
func tree(tb testing.TB, c treeCase) string {
	perDir := 100
	if c.shape == "flat" {
		perDir = c.files
	}
	return keep(tb, fmt.Sprintf("%s-%d", c.shape, c.files), func(dir string) { makeTree(tb, dir, c.files, perDir) })
}

// makeTree fills dir with n files in directories of perDir, nested by eights. One file in twenty is a hard link to an
// earlier one and one in a hundred a symbolic link. Half of the files are empty, the others have 1 byte to 8 KiB.
func makeTree(tb testing.TB, dir string, n, perDir int) {
	data := make([]byte, 8<<10)
	sizes := []int{0, 1, 0, 100, 0, 4000, 0, 8192, 0, 512}
	var d, last string
	for i := range n {
		if i%perDir == 0 {
			d = leaf(dir, i/perDir)
			must(tb, os.MkdirAll(d, 0o755))
		}
		name := filepath.Join(d, fmt.Sprintf("file-%06d.dat", i))
		switch {
		case i%100 == 50:
			must(tb, os.Symlink("nowhere", name))
		case i%20 == 7 && last != "":
			must(tb, os.Link(last, name))
		default:
			must(tb, os.WriteFile(name, data[:sizes[i%len(sizes)]], 0o644))
			last = name
		}
	}
}

// leaf is the path of the directory with number n below dir: eight subdirectories in each.
func leaf(dir string, n int) string {
	d := dir
	for k := n; k > 0; k /= 8 {
		d = filepath.Join(d, fmt.Sprintf("d%d", k%8))
	}
	return filepath.Join(d, fmt.Sprintf("leaf-%d", n))
}

// cpu is the user and system time of this process and of its children that have ended.
func cpu() time.Duration {
	var self, children unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &self)
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &children)
	return time.Duration(self.Utime.Nano() + self.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano())
}

// reportPerFile reports wall and CPU time per file; used is the CPU time of all b.N.
func reportPerFile(b *testing.B, n int, used time.Duration) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/file")
	b.ReportMetric(float64(used.Nanoseconds())/float64(b.N*n), "cpu-ns/file")
}

// countCPU reports the processor time of each operation, from here to the end of the benchmark. What others do on the
// machine changes it less than it changes the time.
func countCPU(b *testing.B) (report func()) {
	before := cpu()
	return func() { b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/op") }
}

// countChildren counts the child processes that end until the benchmark does, and reports how many each operation had.
// They are counted by SIGCHLD, which says who ends but not, when two end at the same moment, how many; the page faults
// of all children that were waited for, which getrusage knows and no process lives without, say whether there was any.
func countChildren(b *testing.B) (report func()) {
	const delivery = 2 * time.Millisecond // of the signal of a child that was waited for a moment ago
	time.Sleep(delivery)
	ended := make(chan os.Signal, 1<<16)
	signal.Notify(ended, syscall.SIGCHLD)
	before := childFaults()
	return func() {
		faults := childFaults() - before
		time.Sleep(delivery)
		signal.Stop(ended)
		if (len(ended) > 0) != (faults > 0) {
			b.Errorf("%d children ended, with %d page faults: cannot tell how many there were", len(ended), faults)
		}
		b.ReportMetric(float64(len(ended))/float64(b.N), "children/op")
	}
}

func childFaults() int64 {
	var children unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &children)
	return children.Minflt + children.Majflt
}

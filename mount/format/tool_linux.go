package format

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// killDelay is how long after the kill the pipes of a tool are waited for.
const killDelay = 5 * time.Second

// maxOutput is how much of a tool's output is kept: its end.
const maxOutput = 2048

// toolDirs are where tools are looked for, in this order.
func toolDirs() []string { return []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} }

// findTool returns the absolute path of a tool.
func findTool(dirs []string, name, pkg string) (string, error) {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", &ToolError{
		Tool: name, Package: pkg, ExitCode: -1,
		Err: fmt.Errorf("%w: install the package %s (it is looked for in %v)", ErrNoTool, pkg, dirs),
	}
}

// program is a tool that was found, and its arguments.
type program struct {
	path, tool, pkg string
	args            []string
}

// run runs a tool on an open file or device. The tool sees it as /proc/self/fd/3, and so works on that very one.
func run(ctx context.Context, tool, pkg string, args []string, file *os.File) error {
	path, err := findTool(toolDirs(), tool, pkg)
	if err != nil {
		return err
	}
	abandonable.Note(ctx, tool)
	return runProgram(ctx, program{path: path, tool: tool, pkg: pkg, args: append(args, "/proc/self/fd/3")}, file)
}

func runProgram(ctx context.Context, p program, file *os.File) error {
	output := &tail{limit: maxOutput}
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Env = []string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = killDelay
	device := ""
	if file != nil {
		cmd.ExtraFiles, device = []*os.File{file}, file.Name()
	}
	if err := cmd.Run(); err != nil {
		return toolError(ctx, err, &ToolError{Tool: p.tool, Package: p.pkg, Device: device, Output: output.String()})
	}
	return nil
}

// killGroup kills the tool and whatever it started.
func killGroup(pid int) error {
	err := unix.Kill(-pid, unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

func toolError(ctx context.Context, err error, e *ToolError) error {
	e.ExitCode, e.Err = -1, err
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		e.ExitCode = exit.ExitCode()
	}
	if ctx.Err() != nil && e.ExitCode < 0 {
		e.Err = fmt.Errorf("killed: %w", context.Cause(ctx))
	}
	return e
}

// tail keeps the end of what is written to it.
type tail struct {
	kept  []byte
	limit int
}

// Write implements io.Writer; it never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(t.kept) }

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// process is one of the cluster's processes.
type process struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended and all its output was read
}

// startProcess starts this program in another role, in a process group of its own. It calls printed with each line of the process's
// output. The kernel kills the process if this one dies.
func startProcess(name string, args []string, printed func(from, line string)) (*process, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", args...) //nolint:noctx // It is stopped and killed by the demo.
	cmd.Args[0] = name
	cmd.Env = append(os.Environ(), roleVariable+"=1")
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{name: name, cmd: cmd, ended: make(chan struct{})}
	err = cmd.Start()
	writer.Close()
	if err != nil {
		reader.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go p.listen(reader, printed)
	return p, nil
}

// listen passes the output of a process on, and then waits for its end.
func (p *process) listen(reader io.ReadCloser, printed func(from, line string)) {
	defer close(p.ended)
	defer reader.Close()
	lines := bufio.NewScanner(reader)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		printed(p.name, lines.Text())
	}
	_ = p.cmd.Wait() // The demo kills processes.
}

// kill kills a process and all its children, like a crash.
func (p *process) kill() error {
	err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// stop asks a process to end, and waits for its end.
func (p *process) stop(ctx context.Context) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w", p.name, errors.Join(ctx.Err(), p.kill()))
	}
}

// roleVariable is set for the processes that the demo starts, so that a test binary knows that it is one of them.
const roleVariable = "VOLUMEKIT_CLUSTER_ROLE"

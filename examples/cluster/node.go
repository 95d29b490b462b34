package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// holdNode is the small parent of an agent: it holds the mount namespace of a node, with a tmpfs at run, and keeps an agent
// running in it, with the same arguments. The agent can be killed: it is started again and finds its mounts. When ctx ends the
// agent is told to end, and the mounts stay until this process ends.
//
// The thread that calls it is in the node's namespace afterwards, and ends with its goroutine.
func holdNode(ctx context.Context, run string, args []string, out *output) error {
	runtime.LockOSThread() // and never unlocked
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("a mount namespace of its own: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts of the namespace private: %w", err)
	}
	if err := os.MkdirAll(run, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("run", run, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return fmt.Errorf("mount a tmpfs at %q: %w", run, err)
	}
	for ctx.Err() == nil {
		err := runAgent(ctx, args, out)
		if ctx.Err() == nil {
			out.say("the agent ended (%v) and is started again", err)
			pause(ctx, 100*time.Millisecond)
		}
	}
	return nil
}

// agentRuns begins the line that tells the process of an agent.
const agentRuns = "the agent is process "

// runAgent runs an agent until it ends, and asks it to when ctx does. A process inherits the namespace of the thread that
// starts it, and is killed with that thread.
func runAgent(ctx context.Context, args []string, out *output) error {
	agent := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"agent"}, args...)...)
	agent.Stdout, agent.Stderr = os.Stdout, os.Stderr
	agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	agent.Cancel = func() error { return agent.Process.Signal(syscall.SIGTERM) }
	agent.WaitDelay = 20 * time.Second
	if err := agent.Start(); err != nil {
		return err
	}
	out.say("%s%d", agentRuns, agent.Process.Pid)
	return agent.Wait()
}

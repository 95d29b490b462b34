package faultrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Program is the program to run.
type Program struct {
	// Path is the absolute path of the executable.
	Path string
	// Args are its arguments, without its name.
	Args []string
	// Env is its environment; nil means that of this process.
	Env []string
	// Dir is its working directory; empty means that of this process.
	Dir string
	// Stdin, Stdout and Stderr are those of os/exec.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Namespace is its mount namespace; nil means that of this process.
	Namespace *Namespace
	// Second is the executable of the second process, which must call [Main] first; empty means this one. The executable of
	// package become starts faster than a test binary.
	Second string
	// Calls selects the system calls that are counted and judged.
	Calls Calls
	// Judge decides what happens to each counted call; nil lets all of them happen.
	Judge Judge
}

// Result is the result of a run.
type Result struct {
	// Calls is the number of counted calls.
	Calls int
	// Killed says that a verdict killed the program.
	Killed bool
	// State is the state of the ended process.
	State *os.ProcessState
}

// Run is a running program. Make it with [Start].
type Run struct {
	command  *exec.Cmd
	calls    Calls
	judge    Judge
	listener int
	ended    chan struct{} // closed when no process of the program is alive
	delayed  sync.WaitGroup

	// Until ended is closed, only the goroutine that serves the listener uses the fields below.
	counted int
	killed  bool
	err     error
}

// Start starts a program. If ctx ends before the program, the program is killed. The caller must call Wait.
func Start(ctx context.Context, p Program) (*Run, error) {
	if arch == 0 {
		return nil, fmt.Errorf("faultrun: the system calls of this architecture are not known: %w", errors.ErrUnsupported)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("faultrun: %w", err)
	}
	defer ours.Close()
	r := &Run{command: command(ctx, p, theirs), calls: p.Calls, judge: p.Judge, ended: make(chan struct{})}
	err = r.start()
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("faultrun: starting the second process: %w", err)
	}
	if r.listener, err = receive(ours); err != nil {
		close(r.ended)
		err = errors.Join(err, r.command.Wait())
		return nil, fmt.Errorf("faultrun: the second process did not become %q, see what it wrote to standard error: %w", p.Path, err)
	}
	go r.serve()
	return r, nil
}

// start starts the second process from a thread that lives as long as the program. If the thread ends early, as it does when this
// process is killed, the kernel kills the program.
func (r *Run) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := r.command.Start()
		started <- err
		if err == nil {
			<-r.ended
		}
	}()
	return <-started
}

func command(ctx context.Context, p Program, socket *os.File) *exec.Cmd {
	second := cmp.Or(p.Second, "/proc/self/exe")
	c := exec.CommandContext(ctx, second, append([]string{p.Path}, p.Args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.Dir, c.Stdin, c.Stdout, c.Stderr = p.Dir, p.Stdin, p.Stdout, p.Stderr
	c.Env = p.Env
	if c.Env == nil {
		c.Env = os.Environ()
	}
	c.Env = append(slices.Clip(c.Env), envStub+"="+order{p.Calls, p.Namespace != nil}.String())
	if p.Dir != "" {
		c.Env = append(c.Env, "PWD="+p.Dir)
	}
	c.ExtraFiles = []*os.File{socket}
	if p.Namespace != nil {
		c.ExtraFiles = append(c.ExtraFiles, p.Namespace.file)
	}
	return c
}

// Pid returns the process id of the program.
func (r *Run) Pid() int { return r.command.Process.Pid }

// Signal sends a signal to the program.
func (r *Run) Signal(s os.Signal) error { return r.command.Process.Signal(s) }

// Wait waits until the program and all of its children have ended. The result says how the program ended. An error is a failure of
// the runner.
func (r *Run) Wait() (Result, error) {
	err := r.command.Wait()
	<-r.ended
	r.delayed.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil // Result.State has the exit code.
	}
	if err = errors.Join(err, r.err, unix.Close(r.listener)); err != nil {
		err = fmt.Errorf("faultrun: %w", err)
	}
	return Result{Calls: r.counted, Killed: r.killed, State: r.command.ProcessState}, err
}

// serve answers the calls of the program until no process is left that could make one.
func (r *Run) serve() {
	defer close(r.ended)
	for {
		n, err := next(r.listener)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			r.err = err
			_ = r.command.Process.Kill() // Otherwise its next call would wait for an answer for ever.
			return
		}
		r.answer(n)
	}
}

// answer judges one call and answers it.
func (r *Run) answer(n notification) {
	call := Call{Thread: int(n.thread), Number: uint32(n.data.number), Args: n.data.args}
	switch {
	case r.killed:
		killProcessOf(call.Thread)
		return
	case r.calls != Files && (writesContent(call.Number) && !call.isFile() || call.asksTerminal()):
		r.respond(n, Verdict{})
		return
	}
	r.counted++
	call.N = r.counted
	var verdict Verdict
	if r.judge != nil {
		verdict = r.judge(call)
	}
	r.carryOut(n, verdict)
}

func (r *Run) carryOut(n notification, v Verdict) {
	switch {
	case v.kill:
		r.killed = true
		_ = r.command.Process.Kill() // It fails only if the program has ended.
		killProcessOf(int(n.thread)) // A child may have made the call.
	case v.wait > 0:
		r.delayed.Go(func() { r.respondAfter(n, v) })
	default:
		r.respond(n, v)
	}
}

// socketPair returns two connected sockets. Programs that are started do not inherit them.
func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "runner"), os.NewFile(uintptr(fds[1]), "program"), nil
}

// receive waits for the descriptor that the second process sends. It returns io.EOF if the process has ended.
func receive(socket *os.File) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(int(socket.Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) {
		n, oobn, _, _, err = unix.Recvmsg(int(socket.Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return -1, err
	}
	if n == 0 {
		return -1, io.EOF
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return -1, errors.Join(err, errors.New("no descriptor was sent"))
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

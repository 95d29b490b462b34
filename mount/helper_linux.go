package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

const (
	// maxHelperOutput is how much of a helper's output is kept.
	maxHelperOutput = 4096
	// helperTimeout is how long to wait for the end of the output after the helper has ended. A server that the helper has
	// started may keep the output open.
	helperTimeout = time.Second
)

// byHelper mounts a filesystem by its helper.
func (h *helpers) byHelper(ctx context.Context, p *entry, plan *Plan) error {
	helper := h.programs[plan.FSType]
	program, err := helper.find(plan.FSType)
	if err != nil {
		return err
	}
	if len(plan.Data) > len(plan.public) && helper.Credentials == "" {
		return fmt.Errorf("%s takes no secrets but as arguments, which all users can read: %w", program, ErrUnsupported)
	}
	if plan.SELinuxContext != "" && strings.Contains(plan.SELinuxContext, ",") {
		return fmt.Errorf("the arguments of %s cannot hold a label with a comma: %w", program, ErrUnsupported)
	}
	if err := plan.checkSELinux(); err != nil {
		return err
	}
	st, err := h.openStage(ctx, plan.Target)
	if err != nil {
		return err
	}
	err = st.mount(ctx, p, &helperRun{program: program, helper: helper, plan: plan})
	if closeErr := st.close(ctx); closeErr != nil {
		return fmt.Errorf("%w: %w", ErrUncertain, errors.Join(err, closeErr))
	}
	return err
}

func (h *helpers) hasHelper(fsType string) bool {
	_, ok := h.programs[fsType]
	return ok
}

func (h Helper) find(fsType string) (string, error) {
	programs := h.programs(fsType)
	for _, program := range programs {
		if info, err := os.Stat(program); err == nil && info.Mode().IsRegular() {
			return program, nil
		}
	}
	return "", fmt.Errorf("no helper for %q at %s; install it: %w", fsType, strings.Join(programs, ", "), ErrUnsupported)
}

// helperRun is one run of a helper.
type helperRun struct {
	program string
	helper  Helper
	plan    *Plan
}

// mount runs the helper, which mounts on the stage, and moves its mount to p.
func (st *stage) mount(ctx context.Context, p *entry, run *helperRun) error {
	if err := run.do(ctx, st.point()); err != nil {
		return err
	}
	fd, err := st.result(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", run.program, err)
	}
	defer closeFD(fd)
	c := changer{st.reader}
	if err := c.finishStaged(ctx, fd, run.plan); err != nil {
		return err
	}
	return p.attach(ctx, true, run.plan, func(t *target) error { return moveStaged(ctx, fd, t, run.plan) })
}

// finishStaged sets the options of the plan on the helper's mount. The helper may have ignored them.
func (c changer) finishStaged(ctx context.Context, fd int, plan *Plan) error {
	if !plan.changesMount() {
		return nil
	}
	return c.changeMount(ctx, fd, plan)
}

// moveStaged moves the helper's mount from the stage to the target.
func moveStaged(ctx context.Context, fd int, t *target, plan *Plan) error {
	if !t.reader.without.has(FeatureMountFD) {
		err := move(ctx, fd, t, plan)
		if !errors.Is(err, unix.ENOSYS) {
			return err
		}
	}
	if err := abandonable.Begin(ctx, "mount(MS_MOVE)"); err != nil {
		return err
	}
	if err := t.open(); err != nil {
		return err
	}
	if err := unix.Mount(fdPath(fd), fdPath(t.fd), "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("mount(MS_MOVE): %w", explainLimit(err))
	}
	c := changer{t.reader}
	if err := c.setPropagation(ctx, fd, plan); err != nil {
		return t.undo(ctx, err)
	}
	c.reportMade(ctx, fd, plan.Target)
	return nil
}

// do runs the helper. It locks its goroutine to the thread: the kernel kills the helper when the thread that started it ends.
func (r *helperRun) do(ctx context.Context, dir string) error {
	if err := abandonable.Begin(ctx, r.program); err != nil {
		return err
	}
	secrets, err := r.credentials()
	if err != nil {
		return err
	}
	var credentials string
	if secrets != nil {
		defer secrets.Close()
		credentials = r.helper.Credentials + "=/proc/self/fd/3" // the first of ExtraFiles
	}
	args, err := r.plan.helperArgs(r.program, dir, credentials)
	if err != nil {
		return err
	}
	output := &cappedOutput{}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), r.program, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = output, output
	cmd.WaitDelay = helperTimeout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if secrets != nil {
		cmd.ExtraFiles = []*os.File{secrets}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the helper: %w", err)
	}
	return r.explain(ctx, waitForGroup(ctx, cmd), output)
}

// credentials puts the secrets into a file in memory.
func (r *helperRun) credentials() (*os.File, error) {
	sensitive := r.plan.Data[len(r.plan.public):]
	if len(sensitive) == 0 {
		return nil, nil
	}
	fd, err := unix.MemfdCreate("credentials", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "credentials")
	if _, err := file.WriteAt([]byte(strings.Join(sensitive, "\n")+"\n"), 0); err != nil {
		file.Close()
		return nil, fmt.Errorf("writing credentials to memory: %w", err)
	}
	return file, nil
}

// waitForGroup waits for the helper. It kills the whole process group if ctx ends or the helper fails. The number of the group
// cannot be reused before the helper is reaped.
func waitForGroup(ctx context.Context, cmd *exec.Cmd) error {
	pid := cmd.Process.Pid
	kill := func() { _ = unix.Kill(-pid, unix.SIGKILL) }
	stop := context.AfterFunc(ctx, kill)
	var info unix.Siginfo
	waitErr := retry(func() error { return unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil) })
	const exited = 1 // CLD_EXITED
	if !stop() || waitErr != nil || info.Code != exited {
		kill()
	}
	err := cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // it succeeded; a server that it started may keep its output open
	}
	if err != nil {
		kill() // processes that the helper left keep the number of the group
	}
	return err
}

// explain makes the error of a run.
func (r *helperRun) explain(ctx context.Context, err error, output *cappedOutput) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s was killed: %w: %w", r.program, ErrUncertain, ctx.Err())
	}
	text := strings.TrimSpace(r.plan.scrub(output.String()))
	if text == "" {
		return fmt.Errorf("%s: %w", r.program, err)
	}
	return fmt.Errorf("%s: %w: %q", r.program, err, text)
}

// cappedOutput keeps the beginning of what is written to it.
type cappedOutput struct{ kept []byte }

// Write never fails: an error would stop the helper.
func (o *cappedOutput) Write(data []byte) (int, error) {
	o.kept = append(o.kept, data[:min(len(data), maxHelperOutput-len(o.kept))]...)
	return len(data), nil
}

func (o *cappedOutput) String() string { return string(o.kept) }

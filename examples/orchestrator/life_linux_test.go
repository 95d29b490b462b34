package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// step is one step in the life of a pod and its claims on a node.
type step struct {
	name  string
	from  want
	grown bool // begins with claims that have become larger
	do    func(*life, context.Context) error
}

// steps are the steps in their order. Together they are everything that an agent does: provision, attach, stage, set up,
// map, restart, expand, tear down, unmap, unstage, detach, all of these once more with the same volumes, delete.
func steps() []step {
	return []step{
		{"start", gone, false, (*life).begin},
		{"restart", podWanted, false, (*life).goOn},
		{"expand", podWanted, false, (*life).expand},
		{"remove the pod", podWanted, true, to(claimsWanted)},
		{"add it again", claimsWanted, true, to(podWanted)},
		{"delete all", podWanted, true, to(nothingWanted)},
		{"end", nothingWanted, false, (*life).terminate},
	}
}

func to(what want) func(*life, context.Context) error {
	return func(l *life, ctx context.Context) error { return l.change(ctx, what) }
}

// life is what happens on one machine, from before the first start of an agent until nothing is left.
type life struct {
	node  *node
	whole *life // one in which nothing went wrong; nil in that one
	calls faultrun.Calls
	aim   aim
	agent *process // nil when none runs
	told  string   // by the agents that have ended
	// restart says that calls fail: an agent that gives up is started again, as a supervisor does.
	restart  bool
	restarts int

	at   want           // what the manifests say
	seen map[want]state // what was there; at the end under gone

	// What must be there still, since it was written: in the pod's own volumes, in those of the claims.
	podUsed, claimsUsed bool
	uuid                string // of the filesystem then
	deleted             bool   // the claims may be gone
	unstaged            bool   // since the claims ask for more
}

// live goes through the steps, in the way of take, and then takes everything away.
func (l *life) live(ctx context.Context, take take) error {
	for i, s := range steps() {
		if err := take(ctx, l, i); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if l.agent != nil {
		if err := errors.Join(l.reachWant(ctx, nothingWanted), l.terminate(ctx)); err != nil {
			return err
		}
	}
	return l.end(ctx)
}

// end finds out whether anything is left.
func (l *life) end(ctx context.Context) error {
	l.at = gone
	if l.restart && l.compare() != nil {
		l.restart = false // from here on nothing fails
		if err := errors.Join(l.recover(ctx, nothingWanted), l.terminate(ctx)); err != nil {
			return err
		}
		l.at = gone
	}
	return errors.Join(l.compare(), l.node.checkForeign())
}

// reach brings the machine to what a step begins with, in the way in which it gets there when nothing goes wrong.
func (l *life) reach(ctx context.Context, s step) error {
	if s.grown && (l.deleted || !l.node.grown) {
		if err := l.reachWant(ctx, podWanted); err != nil {
			return err
		}
		if err := l.expand(ctx); err != nil {
			return err
		}
	}
	return l.reachWant(ctx, s.from)
}

func (l *life) reachWant(ctx context.Context, what want) error {
	switch {
	case l.at == what:
		return nil
	case l.agent == nil: // none was started yet, since there is nothing to do in the first step
		return l.recover(ctx, what)
	}
	return l.change(ctx, what)
}

// change has the manifests say something else.
func (l *life) change(ctx context.Context, what want) error {
	if err := l.want(what); err != nil {
		return err
	}
	l.agent.hangUp()
	return l.settle(ctx)
}

// want writes the manifests.
func (l *life) want(what want) error {
	if what > nothingWanted && l.deleted {
		l.node.renew()
		l.deleted, l.unstaged = false, false
	}
	l.at = what
	l.podUsed = l.podUsed && what == podWanted
	l.claimsUsed = l.claimsUsed && what != nothingWanted
	l.deleted = l.deleted || what == nothingWanted
	return l.node.want(what)
}

func (l *life) begin(ctx context.Context) error {
	return errors.Join(l.want(podWanted), l.start(ctx), l.settle(ctx))
}

// goOn ends the agent in good order, and starts another, while the pod is there.
func (l *life) goOn(ctx context.Context) error {
	if err := l.terminate(ctx); err != nil {
		return err
	}
	if err := l.start(ctx); err != nil {
		return err
	}
	return l.settle(ctx)
}

// expand has the claims ask for more, while the pod is there.
func (l *life) expand(ctx context.Context) error {
	l.node.grown = true
	return l.change(ctx, podWanted)
}

// recover starts another agent after one was killed.
func (l *life) recover(ctx context.Context, what want) error {
	if l.agent != nil { // It was killed after it had settled, while it noted what it had done.
		if _, err := l.over(ctx); err != nil {
			return err
		}
	}
	if err := l.want(what); err != nil {
		return err
	}
	if err := l.start(ctx); err != nil {
		return err
	}
	return l.settle(ctx)
}

func (l *life) start(ctx context.Context) error {
	var err error
	l.agent, err = l.node.start(ctx, l.aim.judge, l.calls)
	return err
}

// errKilled says that an agent was killed.
var errKilled = errors.New("the agent was killed")

// settle waits until the machine is what the manifests say, and finds out whether it is. An agent that has given up is
// started again, if that is wanted.
func (l *life) settle(ctx context.Context) error {
	for {
		settled, err := l.agent.settle(ctx)
		if err != nil {
			return err
		}
		if settled {
			return l.check()
		}
		result, err := l.over(ctx)
		switch {
		case err != nil:
			return err
		case result.Killed:
			return errKilled
		case !l.restart || result.State.ExitCode() != 1:
			return fmt.Errorf("the agent has ended: %s; it has told:\n%s", result.State, l.told)
		}
		l.restarts++
		if err := l.start(ctx); err != nil {
			return err
		}
	}
}

// over takes note of an agent that has ended.
func (l *life) over(ctx context.Context) (faultrun.Result, error) {
	result, err := l.agent.end(ctx)
	l.told += l.agent.told.String()
	l.agent = nil
	return result, err
}

// terminate ends the agent in good order.
func (l *life) terminate(ctx context.Context) error {
	_ = l.agent.run.Signal(syscall.SIGTERM) // it may have ended
	result, err := l.over(ctx)
	switch {
	case err != nil:
		return err
	case result.Killed:
		return errKilled
	case result.State.Success() || l.restart && result.State.ExitCode() == 1:
		return nil
	}
	return fmt.Errorf("the agent has ended: %s; it has told:\n%s", result.State, l.told)
}

// check finds out whether what is there is what is wanted, with all that was written, and then writes.
func (l *life) check() error {
	l.unstaged = l.unstaged || l.node.grown && l.at == claimsWanted
	if err := l.compare(); err != nil || l.at != podWanted {
		return err
	}
	if err := l.checkUsed(); err != nil {
		return err
	}
	if l.node.grown {
		if err := l.node.checkGrown(l.unstaged); err != nil {
			return err
		}
	}
	if err := errors.Join(l.node.use(), l.node.checkUse(everything)); err != nil {
		return err
	}
	l.podUsed, l.claimsUsed = true, true
	var err error
	l.uuid, err = l.node.uuid()
	return err
}

// checkUsed finds out whether what must be there still is.
func (l *life) checkUsed() error {
	if !l.claimsUsed {
		return nil
	}
	still := isLasting
	if l.podUsed {
		still = everything
	}
	id, err := l.node.uuid()
	if err == nil && id != l.uuid {
		err = fmt.Errorf("the volume was formatted again: its filesystem was %s and is %s", l.uuid, id)
	}
	return errors.Join(err, l.node.checkUse(still))
}

func everything(string) bool { return true }

// compare finds out whether there is what there is in a life in which nothing goes wrong: neither more nor, for a pod,
// less. The manager may still note what it has done.
func (l *life) compare() error {
	end := time.Now().Add(5 * time.Second)
	for {
		here, err := l.node.look()
		if err != nil {
			return err
		}
		if l.whole == nil && l.seen[l.at] == nil {
			l.seen[l.at] = here
		}
		if err := l.differs(here); err == nil || l.agent == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-l.agent.ended:
			return errKilled
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// differs says in what way what is here differs from what is to be.
func (l *life) differs(here state) error {
	wanted := l.seen[l.at]
	if l.whole != nil {
		wanted = l.whole.seen[l.at]
	}
	more, missing := here.beyond(wanted), wanted.beyond(here)
	if len(more) == 0 && (len(missing) == 0 || l.at != podWanted) {
		return nil
	}
	return fmt.Errorf("the node has what it should not have: %q; and has not: %q; the agents have told:\n%s", more, missing, l.transcript())
}

// transcript is everything that was told until now.
func (l *life) transcript() string {
	if l.agent == nil {
		return l.told
	}
	return l.told + l.agent.told.String()
}

package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/volumekit/volumekit/internal/faultrun"
)

// life is the life of a pod and its claims on a node, through everything that an agent does: provision, attach, stage,
// set up, map, restart, tear down, unmap, unstage, detach, all of these once more with the same volumes, delete. It goes
// on until its agent is killed.
type life struct {
	node  *node
	calls faultrun.Calls
	judge faultrun.Judge // of the calls of all its agents
	made  int            // calls, of all agents that have ended
	agent *process
	told  string // by the agents that have ended
	// restart says to start an agent again that gives up, as a supervisor does.
	restart  bool
	restarts int

	// used says that there is something in the volumes that must stay there, until deleted says that the claims may be
	// gone.
	used, deleted bool
	killed        bool
	uuid          string
	ready, gone   state // what was there when the pod was ready, and at the end
}

// stages are the parts of a life in their order.
func (l *life) stages() []func(context.Context) error {
	return []func(context.Context) error{l.begin, l.goOn, l.removePod, l.addPodAgain, l.deleteAll, l.end}
}

// live lives until the end, or until the agent was killed.
func (l *life) live(ctx context.Context) error {
	if err := l.node.want(podWanted); err != nil {
		return err
	}
	if err := l.start(ctx); err != nil {
		return err
	}
	for i, stage := range l.stages() {
		err := stage(ctx)
		if l.killed || err != nil && l.wasKilledMeanwhile(ctx) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("stage %d: %w", i, err)
		}
	}
	return nil
}

// wasKilledMeanwhile reports whether the agent was killed after it had settled, while it noted what it had done: then the stage
// has looked at a node without one.
func (l *life) wasKilledMeanwhile(ctx context.Context) bool {
	select {
	case <-l.agent.ended:
	default:
		return false
	}
	_, err := l.over(ctx)
	return err == nil && l.killed
}

func (l *life) start(ctx context.Context) error {
	judge := func(c faultrun.Call) faultrun.Verdict {
		c.N += l.made
		if l.judge == nil {
			return faultrun.Verdict{}
		}
		return l.judge(c)
	}
	var err error
	l.agent, err = l.node.start(ctx, judge, l.calls)
	return err
}

// settle waits until the node is what the manifests say. An agent that has given up is started again, if that is wanted.
func (l *life) settle(ctx context.Context) error {
	for {
		settled, err := l.agent.settle(ctx)
		if settled || err != nil {
			return err
		}
		result, err := l.over(ctx)
		switch {
		case err != nil:
			return err
		case l.killed:
			return nil
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
	l.made += result.Calls
	l.told += l.agent.told.String()
	l.killed = result.Killed
	return result, err
}

// change has the manifests say something else.
func (l *life) change(ctx context.Context, what want) error {
	if err := l.node.want(what); err != nil {
		return err
	}
	l.agent.hangUp()
	return l.settle(ctx)
}

func (l *life) begin(ctx context.Context) error {
	if err := l.settle(ctx); err != nil || l.killed {
		return err
	}
	var err error
	if l.ready, err = l.node.look(); err != nil {
		return err
	}
	l.used = true
	if err := l.node.use(); err != nil {
		return err
	}
	l.uuid, err = l.node.uuid()
	return err
}

// goOn ends the agent in good order, and starts another, while the pod is there.
func (l *life) goOn(ctx context.Context) error {
	if err := l.terminate(ctx); err != nil || l.killed {
		return err
	}
	if err := l.start(ctx); err != nil {
		return err
	}
	if err := l.settle(ctx); err != nil || l.killed {
		return err
	}
	return errors.Join(l.node.checkUse(everything), l.sameAs(l.ready))
}

func (l *life) terminate(ctx context.Context) error {
	_ = l.agent.run.Signal(syscall.SIGTERM) // it may have ended
	result, err := l.over(ctx)
	if err != nil || l.killed || result.State.Success() || l.restart && result.State.ExitCode() == 1 {
		return err
	}
	return fmt.Errorf("the agent has ended: %s; it has told:\n%s", result.State, l.told)
}

func (l *life) removePod(ctx context.Context) error { return l.change(ctx, claimsWanted) }

func (l *life) addPodAgain(ctx context.Context) error {
	if err := l.change(ctx, podWanted); err != nil || l.killed {
		return err
	}
	return errors.Join(l.node.checkUse(isLasting), l.sameAs(l.ready), l.sameFilesystem())
}

func (l *life) deleteAll(ctx context.Context) error {
	l.deleted = true
	return l.change(ctx, nothingWanted)
}

func (l *life) end(ctx context.Context) error {
	if err := l.terminate(ctx); err != nil || l.killed {
		return err
	}
	var err error
	l.gone, err = l.node.look()
	return errors.Join(err, l.node.checkForeign())
}

func everything(string) bool { return true }

// sameAs compares what is there with what is to be there.
func (l *life) sameAs(wanted state) error {
	here, err := l.node.look()
	if err != nil {
		return err
	}
	more, missing := here.beyond(wanted), wanted.beyond(here)
	if len(more)+len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the node has what it should not have: %q; and has not: %q; the agent has told:\n%s", more, missing, l.agent.told)
}

// sameFilesystem finds out whether the volume was formatted again.
func (l *life) sameFilesystem() error {
	id, err := l.node.uuid()
	if err == nil && id != l.uuid {
		err = fmt.Errorf("the volume was formatted again: its filesystem was %s and is %s", l.uuid, id)
	}
	return err
}

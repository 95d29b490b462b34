package world

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

var (
	errSimulated = errors.New("simulated failure")
	errNotThere  = errors.New("simulated: what it needs is not there")
	errKilled    = volume.Uncertain(errors.New("the process was killed"))
)

// nilError is an error type whose nil pointer some plugins return.
type nilError struct{}

func (*nilError) Error() string { return "a nil pointer" }

// effect is what a call of the plugin does to the truth.
type effect struct {
	call *pluginCall
	// apply makes it, clean undoes what is left of it when the call fails for good; either may be nil.
	apply, clean func()
	// half makes or undoes a part; nil where there are no parts.
	half func()
}

// end returns what the plugin's method returns for a verdict, after its effect.
func (p *Process) end(ctx context.Context, e effect, verdict string) error {
	failed := fmt.Errorf("%s: %w", e.call.label, errSimulated)
	switch verdict {
	case killed:
		return errKilled
	case OK:
		return e.do()
	case Lie:
		return nil
	case Transient:
		return fmt.Errorf("wrapped: %w", volume.Transient(failed))
	case Unsure:
		return fmt.Errorf("wrapped: %w", volume.Uncertain(failed))
	case Final:
		if e.clean != nil {
			p.world.change(e.clean)
		}
		return failed
	case Panic:
		panic(failed)
	case Goexit:
		runtime.Goexit()
	case Cancelled:
		return p.cancelled(ctx)
	case Half:
		return p.endHalf(ctx, e)
	case refused, infeasible:
		return p.refuse(e, verdict)
	}
	return p.endAfter(ctx, e, verdict)
}

// endAfter is end for the verdicts that make the effect first.
func (p *Process) endAfter(ctx context.Context, e effect, verdict string) error {
	failed := fmt.Errorf("%s after its effect: %w", e.call.label, errSimulated)
	if err := e.do(); err != nil {
		return err
	}
	switch verdict {
	case FinalAfter:
		return failed
	case TransientAfter:
		return volume.Transient(failed)
	case UnsureAfter:
		return fmt.Errorf("wrapped: %w", volume.Uncertain(failed))
	case PanicAfter:
		panic(failed)
	case GoexitAfter:
		runtime.Goexit()
	case CancelledAfter:
		return p.cancelled(ctx)
	case NilError:
		return (*nilError)(nil) // This is the mistake that is simulated.
	case LoseAnswer:
		return p.answer(ctx, e)
	}
	return fmt.Errorf("verdict %q is not known", verdict)
}

// endHalf makes a part of the effect, and fails after the driver had the time to kill the process.
func (p *Process) endHalf(_ context.Context, e effect) error {
	if err := e.with(e.half); err != nil {
		return err
	}
	if p.park("Half", "Half:"+e.call.label) == killed {
		return errKilled
	}
	return fmt.Errorf("%s failed in its last step: %w", e.call.label, errSimulated)
}

// answer waits for a call's answer, which was lost, after its effect.
func (p *Process) answer(ctx context.Context, e effect) error {
	verdict := p.park("Answer", "Answer:"+e.call.label)
	return p.end(ctx, effect{call: e.call}, verdict)
}

// cancelled waits for the end of ctx, and says no more than that.
func (p *Process) cancelled(ctx context.Context) error {
	<-ctx.Done()
	if p.isDead() {
		return errKilled
	}
	return ctx.Err()
}

// do makes the effect, if the world allows it.
func (e effect) do() error { return e.with(e.apply) }

func (e effect) with(apply func()) error {
	if apply == nil {
		return nil
	}
	return e.call.process.world.apply(e.call, apply)
}

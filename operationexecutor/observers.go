package operationexecutor

import "context"

// Observers are several observers as one: each is told of everything, in their order. Each that is a [ContextObserver] gets the context
// that those before it returned.
type Observers []Observer

var _ ContextObserver = Observers(nil)

// OperationContext implements ContextObserver.
func (all Observers) OperationContext(ctx context.Context, o OperationInfo) context.Context {
	for _, one := range all {
		if chooses, ok := one.(ContextObserver); ok {
			ctx = chooses.OperationContext(ctx, o)
		}
	}
	return ctx
}

// OperationStarted implements Observer.
func (all Observers) OperationStarted(o OperationInfo) {
	for _, one := range all {
		one.OperationStarted(o)
	}
}

// OperationStepped implements Observer.
func (all Observers) OperationStepped(o OperationInfo, s Step) {
	for _, one := range all {
		one.OperationStepped(o, s)
	}
}

// OperationFinished implements Observer.
func (all Observers) OperationFinished(o OperationInfo, r Result) {
	for _, one := range all {
		one.OperationFinished(o, r)
	}
}

package outcome

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// said is an error with the method Uncertain.
type said struct {
	uncertain bool
	done      chan struct{}
}

func (s said) Error() string         { return "said" }
func (s said) Uncertain() bool       { return s.uncertain }
func (s said) Done() <-chan struct{} { return s.done }

func TestClassOf(t *testing.T) {
	plain := errors.New("plain")
	for name, tc := range map[string]struct {
		err  error
		want Class
	}{
		"nil":                                {nil, Done},
		"plain":                              {plain, Final},
		"context":                            {context.DeadlineExceeded, Final},
		"transient":                          {ErrTransient, Transient},
		"uncertain":                          {ErrUncertain, Uncertain},
		"method":                             {said{uncertain: true}, Uncertain},
		"method says no":                     {said{}, Final},
		"uncertain wins":                     {errors.Join(ErrTransient, ErrUncertain), Uncertain},
		"method wins":                        {errors.Join(ErrTransient, said{uncertain: true}), Uncertain},
		"a no does not hide a yes":           {errors.Join(said{}, said{uncertain: true}), Uncertain},
		"a no above does not hide a yes":     {errors.Join(plain, fmt.Errorf("%w: %w", said{}, ErrUncertain)), Uncertain},
		"a transient part among plain parts": {errors.Join(plain, ErrTransient), Transient},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, ClassOf(tc.err))
			if tc.err == nil {
				return
			}
			wrapped := fmt.Errorf("outer: %w", fmt.Errorf("inner: %w", tc.err))
			assert.Equal(t, tc.want, ClassOf(wrapped), "through two wraps")
			assert.Equal(t, tc.want, ClassOf(errors.Join(plain, wrapped)), "through a join")
		})
	}
}

func TestClassString(t *testing.T) {
	for c, want := range []string{"done", "transient", "uncertain", "final", "invalid"} {
		assert.Equal(t, want, Class(c).String())
	}
}

func TestDoneOfOneLostCall(t *testing.T) {
	assert.Nil(t, DoneOf(nil))
	assert.Nil(t, DoneOf(errors.New("plain")))
	assert.Nil(t, DoneOf(said{}), "a nil channel says that nothing runs")

	done := make(chan struct{})
	err := fmt.Errorf("outer: %w", errors.Join(said{}, fmt.Errorf("inner: %w", said{done: done})))
	require.Equal(t, (<-chan struct{})(done), DoneOf(err), "found behind a part that has nothing running")
	require.Equal(t, []<-chan struct{}{done}, Running(err))
	close(done)
	assert.Empty(t, Running(err))
	assert.NotNil(t, DoneOf(err), "it was abandoned, and has ended since")
}

func TestDoneOfSeveralLostCallsWaitsForAll(t *testing.T) {
	for name, order := range map[string][]int{"first to last": {0, 1, 2}, "last to first": {2, 1, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{})}
				all := DoneOf(errors.Join(said{done: calls[0]}, fmt.Errorf("wrapped: %w",
					errors.Join(said{done: calls[1]}, said{done: calls[2]}))))
				for _, i := range order {
					synctest.Wait()
					select {
					case <-all:
						t.Fatal("closed while a call still runs")
					default:
					}
					close(calls[i])
				}
				<-all
			})
		})
	}
}

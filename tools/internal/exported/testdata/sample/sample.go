// Package sample has a thing of each sort.
package sample

import (
	"context"
	"io"
)

const (
	Reason        = "Failed"
	Limit   int64 = 1 << 40
	private       = 1
)

var ErrGone error

type Open interface {
	io.Closer
	Do(ctx context.Context, names ...string) (n int, err error)
}

type Sealed interface {
	Do()
	sealed()
}

type Number interface{ ~int | ~int64 }

type Base struct{ Size int64 }

func (Base) Value() int   { return private }
func (*Base) Pointer()    {}
func (*Base) hidden() int { return 0 }

type Struct struct {
	Base
	Call   func(ctx context.Context) error
	hidden int
}

type (
	Word        string
	Alias       = Struct
	List[T any] struct{ Items []T }
)

func (w Word) String() string { return string(w) }

func (l *List[T]) Add(item T) {}

func Map[K comparable, V Number](in map[K]V, each func(K) V) map[K]V { return in }

func private2() { (&Base{}).hidden() }

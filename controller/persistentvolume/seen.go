package persistentvolume

import (
	"fmt"

	"github.com/volumekit/volumekit/store"
)

// An item that waits is woken by the events of what it waits for. A mirror tells of an object's end only when it knows the object:
// what came and went between two lists is in no event. So an item may wait for an object that it has read from the store when the
// mirror knows it, and must be looked at again soon when it does not. The mirror is asked after the store: an end of which it hears
// from then on wakes the item, also while that is being looked at.

// awaitChange returns nil when an event will tell of a change of obj, which was read from the store, and otherwise an error that has
// the item looked at again soon.
func awaitChange[T store.Object](m *store.Mirror[T], obj T) error {
	if known, there := m.Get(store.NameOf(obj)); there && known.GetUID() == obj.GetUID() {
		return nil
	}
	return fmt.Errorf("%T %q is in the store, and no event has told of it: %w", obj, store.NameOf(obj), store.ErrConflict)
}

// use is who uses the storage of a volume.
type use struct {
	by string // in words; empty for nobody
	// err ends the look at the item: nil when an event tells of the end of the use.
	err error
}

package volumemanager

import "sync"

// turns lets those who work on the same key take turns. It is a lock for work that may take long, so that a wait for it
// can be given up. A key costs nothing while nobody works on it. The zero value is ready.
type turns[K comparable] struct {
	mu   sync.Mutex
	keys map[K]*turn
	// spare is a turn that nobody has, for the next key.
	spare *turn
}

type turn struct {
	token chan struct{} // holds one while nobody works
	users int           // those who work or wait
}

// take waits for the turn of key, and returns false when done is closed first. release must be called once.
func (t *turns[K]) take(done <-chan struct{}, key K) (release func(), ok bool) {
	turn := t.join(key)
	select {
	case <-turn.token:
		return func() {
			turn.token <- struct{}{}
			t.leave(key, turn)
		}, true
	case <-done:
		t.leave(key, turn)
		return nil, false
	}
}

func (t *turns[K]) join(key K) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == nil {
		t.keys = make(map[K]*turn)
	}
	at := t.keys[key]
	if at == nil {
		at, t.spare = t.spare, nil
		if at == nil {
			at = &turn{token: make(chan struct{}, 1)}
			at.token <- struct{}{}
		}
		t.keys[key] = at
	}
	at.users++
	return at
}

func (t *turns[K]) leave(key K, at *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.users--; at.users == 0 {
		delete(t.keys, key)
		t.spare = at // Its token is back.
	}
}

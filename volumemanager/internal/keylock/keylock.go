// Package keylock has one lock for each key, for work that may take long: a caller can stop waiting for a lock.
package keylock

import "sync"

// Locks holds one lock for each key. A key uses memory only while a caller holds its lock or waits for it. The zero value is
// ready.
type Locks[K comparable] struct {
	mu   sync.Mutex
	keys map[K]*lock
	// spare is a free lock, kept for the next key.
	spare *lock
}

type lock struct {
	token chan struct{} // holds one token while the lock is free
	users int           // the callers that hold the lock or wait for it
}

// Take waits for the lock of key. It returns false if done is closed first. The holder must call release exactly once.
func (l *Locks[K]) Take(done <-chan struct{}, key K) (release func(), ok bool) {
	at := l.join(key)
	select {
	case <-at.token:
		return func() {
			at.token <- struct{}{}
			l.leave(key, at)
		}, true
	case <-done:
		l.leave(key, at)
		return nil, false
	}
}

func (l *Locks[K]) join(key K) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = make(map[K]*lock)
	}
	at := l.keys[key]
	if at == nil {
		at, l.spare = l.spare, nil
		if at == nil {
			at = &lock{token: make(chan struct{}, 1)}
			at.token <- struct{}{}
		}
		l.keys[key] = at
	}
	at.users++
	return at
}

func (l *Locks[K]) leave(key K, at *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.users--; at.users == 0 {
		delete(l.keys, key)
		l.spare = at // The token is in its channel again.
	}
}

package record

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// noted is a disk that does nothing but note what it is asked for.
type noted struct{ steps []step }

// step is one system call. content is that of a file which is written.
type step struct {
	call, from, to string
	inode          *inode
}

// inode is a file, which has at most one content here.
type inode struct{ content []byte }

func (n *noted) note(s step) error {
	n.steps = append(n.steps, s)
	return nil
}

func (n *noted) create(name string) (file, error) {
	f := &notedFile{noted: n, inode: &inode{}}
	return f, n.note(step{call: "create", to: name, inode: f.inode})
}

func (n *noted) rename(from, to string) error {
	return n.note(step{call: "rename", from: from, to: to})
}

func (n *noted) unlink(name string) error { return n.note(step{call: "unlink", from: name}) }

func (n *noted) sync() error { return n.note(step{call: "sync"}) }

type notedFile struct {
	*noted
	inode *inode
}

func (f *notedFile) Write(content []byte) (int, error) {
	f.inode.content = bytes.Clone(content)
	return len(content), f.note(step{call: "write", inode: f.inode})
}

func (f *notedFile) Sync() error { return f.note(step{call: "sync file", inode: f.inode}) }

func (f *notedFile) Close() error { return nil }

// promise is what a directory has promised after so many steps: of each key, the values that may be found.
type promise struct {
	steps  int
	values map[string][]string
}

// TestPowerCut cuts the power before and after each system call of a directory's life, and lets each state be found that a
// crash-consistent filesystem may leave: every change of a name that was not synced is there or not, each by itself; every
// file that was not synced is empty, torn, zeroed or whole. What a call has promised is there, what was under way is old or
// new, and nothing is damaged.
func TestPowerCut(t *testing.T) {
	n := &noted{}
	d := &Dir{disk: n, durable: true, left: make(map[string]struct{})}
	var promised []promise
	now := make(map[string][]string) // The last value of a key is the one that was promised.
	do := func(key, value string, call func() error) {
		from := len(n.steps)
		require.NoError(t, call())
		before := maps.Clone(now)
		before[key] = append([]string{value}, now[key]...)
		if len(now[key]) == 0 {
			before[key] = append(before[key], absent)
		}
		for i := from; i < len(n.steps); i++ {
			promised = append(promised, promise{steps: i, values: before})
		}
		now = maps.Clone(now)
		now[key] = []string{value}
		promised = append(promised, promise{steps: len(n.steps), values: now})
	}
	put := func(key, value string) {
		do(key, value, func() error { return d.Put(key, []byte(value)) })
	}
	put("a", "first")
	put("b", "beside")
	put("a", strings.Repeat("second, and longer ", 300))
	do("a", absent, func() error { return d.Remove("a") })
	put("a", "third")
	do("b", absent, func() error { return d.Remove("b") })

	states := 0
	for _, p := range promised {
		for state := range after(n.steps[:p.steps]) {
			states++
			p.holds(t, state)
		}
	}
	assert.Greater(t, states, 200)
	t.Logf("%d states after %d system calls", states, len(n.steps))
}

// absent is the value of a record that is not there.
const absent = "(none)"

// holds checks that a directory with these files keeps the promise.
func (p promise) holds(t *testing.T, files map[string][]byte) {
	t.Helper()
	path := private(t)
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(path, name), content, 0o600))
	}
	d := open(t, path, Options{})
	got, damaged := load(t, d)
	require.Empty(t, damaged, "after step %d: %v", p.steps, files)
	for key, allowed := range p.values {
		value, ok := got[key]
		if !ok {
			value = absent
		}
		require.Contains(t, allowed, value, "key %q after step %d", key, p.steps)
		delete(got, key)
	}
	require.Empty(t, got, "after step %d", p.steps)
	require.NoError(t, d.Close())
}

// after yields every state of a directory that the power may leave after steps.
func after(steps []step) func(yield func(map[string][]byte) bool) {
	durable, pending, synced := replay(steps)
	return func(yield func(map[string][]byte) bool) {
		for subset := range 1 << len(pending) {
			names := maps.Clone(durable)
			for i, s := range pending {
				if subset&(1<<i) != 0 {
					s.apply(names)
				}
			}
			for damage := range 4 {
				files := make(map[string][]byte)
				for name, node := range names {
					files[name] = node.found(synced[node], damage)
				}
				if !yield(files) {
					return
				}
			}
		}
	}
}

// replay returns the names that are durable, the changes of names that are not, and the files that are.
func replay(steps []step) (durable map[string]*inode, pending []step, synced map[*inode]bool) {
	durable, synced = make(map[string]*inode), make(map[*inode]bool)
	inodes := make(map[string]*inode)
	for _, s := range steps {
		switch s.call {
		case "sync file":
			synced[s.inode] = true
		case "sync":
			for _, p := range pending {
				p.apply(durable)
			}
			pending = nil
		case "create":
			inodes[s.to] = s.inode
			pending = append(pending, s)
		case "rename":
			s.inode = inodes[s.from]
			pending = append(pending, s)
		case "unlink":
			pending = append(pending, s)
		}
	}
	return durable, pending, synced
}

// apply changes names as the step does.
func (s step) apply(names map[string]*inode) {
	delete(names, s.from)
	if s.to != "" {
		names[s.to] = s.inode
	}
}

// found is what is found in a file after the power was cut.
func (n *inode) found(synced bool, damage int) []byte {
	if synced {
		return n.content
	}
	return [][]byte{nil, n.content[:len(n.content)/2], make([]byte, len(n.content)), n.content}[damage]
}

// TestPowerCutIsNoticedWithoutSync: the model finds what a directory that does not sync would lose.
func TestPowerCutIsNoticedWithoutSync(t *testing.T) {
	n := &noted{}
	d := &Dir{disk: n, left: make(map[string]struct{})}
	require.NoError(t, d.Put("a", []byte("value")))
	var found []string
	for state := range after(n.steps) {
		content, ok := state[fileName("a")]
		_, _, err := decode(content)
		found = append(found, fmt.Sprint(ok, err == nil))
	}
	assert.Contains(t, found, "false false", "the record is lost")
	assert.Contains(t, found, "true false", "it is torn")
	assert.Contains(t, found, "true true")
}

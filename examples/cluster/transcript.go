package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// transcript is what the processes have printed, in order. The demo reads it to see what they do.
type transcript struct {
	mu     sync.Mutex
	to     io.Writer // of what is worth reading; nil: nothing is
	lines  []string
	failed []string       // lines that say that something is wrong
	wrote  map[string]int // by volume, the last line that is on the disk for certain
	more   chan struct{}  // closed with the next line
}

func newTranscript(to io.Writer) *transcript {
	return &transcript{to: to, wrote: make(map[string]int), more: make(chan struct{})}
}

// add adds a line of a process. Lines that say that a pod has written are not shown: there are many.
func (t *transcript) add(from, line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.more)
	t.more = make(chan struct{})
	var pod string
	var number int
	if n, _ := fmt.Sscanf(line, "pod %s wrote line %d", &pod, &number); n == 2 {
		volume := volumeOf(pod)
		t.wrote[volume] = max(t.wrote[volume], number)
		return
	}
	t.lines = append(t.lines, from+": "+line)
	n, _ := fmt.Sscanf(line, "pod %s is running after line %d", &pod, &number)
	if volume := volumeOf(pod); n == 2 && number < t.wrote[volume] {
		t.failed = append(t.failed, fmt.Sprintf("%s: volume %s has lost what is after line %d: line %d was written", from, volume, number, t.wrote[volume]))
	}
	if strings.HasPrefix(line, "FAILED") || strings.HasPrefix(line, "panic") {
		t.failed = append(t.failed, from+": "+line)
	}
	if t.to != nil {
		fmt.Fprintf(t.to, "%s  %-12s %s\n", time.Now().Format("15:04:05.000"), from, line)
	}
}

// volumeOf returns the volume of a pod: web-3 is the third pod that has web.
func volumeOf(pod string) string {
	i := strings.LastIndexByte(pod, '-')
	return pod[:max(i, 0)]
}

// end is a place in the transcript: its end.
func (t *transcript) end() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lines)
}

// written returns the number of the last line that is on a volume for certain.
func (t *transcript) written(volume string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wrote[volume]
}

// failures returns an error when a process has said that something is wrong.
func (t *transcript) failures() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failed) > 0 {
		return fmt.Errorf("something went wrong: %s", strings.Join(t.failed, "; "))
	}
	return nil
}

// last returns the last line that begins with a text.
func (t *transcript) last(text string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, line := range slices.Backward(t.lines) {
		if strings.HasPrefix(line, text) {
			return line, nil
		}
	}
	return "", fmt.Errorf("no process has printed %q", text)
}

// lastFrom returns the process that was the last to print a line that begins with a text.
func (t *transcript) lastFrom(text string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, line := range slices.Backward(t.lines) {
		if from, said, _ := strings.Cut(line, ": "); strings.HasPrefix(said, text) {
			return from, nil
		}
	}
	return "", fmt.Errorf("no process has printed %q", text)
}

// await waits for a line that has a text, after a place, and returns it.
func (t *transcript) await(ctx context.Context, after int, text string) (string, error) {
	for {
		t.mu.Lock()
		i := slices.IndexFunc(t.lines[after:], func(line string) bool { return strings.Contains(line, text) })
		if i >= 0 {
			defer t.mu.Unlock()
			return t.lines[after+i], nil
		}
		after = len(t.lines)
		more := t.more
		t.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for %q: %w", text, ctx.Err())
		}
	}
}

// awaitWritten waits until a volume has more lines than so many.
func (t *transcript) awaitWritten(ctx context.Context, volume string, lines int) error {
	for {
		t.mu.Lock()
		done, more := t.wrote[volume] > lines, t.more
		t.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("waiting until volume %s has more than %d lines: %w", volume, lines, ctx.Err())
		}
	}
}

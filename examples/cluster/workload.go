package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// journalName is the file that containers write.
const journalName = "journal"

// workload stands for the container of a pod. It writes numbered lines to its volume, syncs each one and reports it. It continues after
// the last line of its predecessor, which may have run in another pod on another node.
type workload struct {
	pod  string
	node types.NodeName
	file *os.File
	last int // the number of the last line
}

// startWorkload opens the journal in dir and reads all of it. A missing, repeated or damaged line is an error. A crash may leave an
// incomplete last line, which was never reported: startWorkload cuts it off.
func startWorkload(dir, pod string, node types.NodeName) (*workload, error) {
	file, err := os.OpenFile(filepath.Join(dir, journalName), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	w := &workload{pod: pod, node: node, file: file}
	if err := w.read(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return w, nil
}

func (w *workload) read() error {
	end := int64(0)
	lines := bufio.NewReader(w.file)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := checkLine(strings.TrimSuffix(line, "\n"), w.last+1); err != nil {
			return fmt.Errorf("%s: after line %d: %w", w.file.Name(), w.last, err)
		}
		w.last++
		end += int64(len(line))
	}
	if err := w.file.Truncate(end); err != nil {
		return err
	}
	_, err := w.file.Seek(end, io.SeekStart)
	return err
}

// run writes a line with each tick until ctx ends. It calls wrote with the number of each line that is on the disk.
func (w *workload) run(ctx context.Context, tick time.Duration, wrote func(int)) error {
	defer w.file.Close()
	for ctx.Err() == nil {
		text := formatLine(w.last+1, w.pod, w.node)
		if _, err := w.file.WriteString(text + "\n"); err != nil {
			return err
		}
		if err := w.file.Sync(); err != nil {
			return err
		}
		w.last++
		wrote(w.last)
		pause(ctx, tick)
	}
	return nil
}

// formatLine returns a line: a checksum, its number, and who wrote it.
func formatLine(number int, pod string, node types.NodeName) string {
	text := fmt.Sprintf("%d %s on %s", number, pod, node)
	return fmt.Sprintf("%08x %s", crc32.ChecksumIEEE([]byte(text)), text)
}

// checkLine returns an error unless line is the line with that number.
func checkLine(line string, number int) error {
	sum, text, _ := strings.Cut(line, " ")
	if sum != fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text))) {
		return fmt.Errorf("damaged: %q", line)
	}
	if !strings.HasPrefix(text, fmt.Sprintf("%d ", number)) {
		return fmt.Errorf("line %d is missing, there is %q", number, line)
	}
	return nil
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

package loop_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// What a child process does is said by its environment; each value is a path.
const (
	childFile  = "VOLUMEKIT_LOOP_TEST_FILE"  // attach that file, once
	childPair  = "VOLUMEKIT_LOOP_TEST_PAIR"  // attach that file and detach it, without end
	childMount = "VOLUMEKIT_LOOP_TEST_MOUNT" // mount that device in the process's own namespace until stdin ends
)

func TestMain(m *testing.M) {
	for name, do := range map[string]func(string) error{childFile: attachOnce, childPair: pairs, childMount: holdMount} {
		if path := os.Getenv(name); path != "" {
			if err := do(path); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	mounttest.Main(m)
}

func attachOnce(path string) error {
	_, err := loop.New(loop.Options{}).Attach(context.Background(), path, loop.AttachOptions{})
	return err
}

func pairs(path string) error {
	m := loop.New(loop.Options{})
	for {
		device, err := m.Attach(context.Background(), path, loop.AttachOptions{})
		if err != nil {
			return err
		}
		fmt.Println("step")
		if err := m.Detach(context.Background(), device); err != nil {
			return err
		}
		fmt.Println("step")
	}
}

func holdMount(device string) error {
	if err := mountHere(device, os.Getenv("TMPDIR")); err != nil {
		return err
	}
	fmt.Println("mounted")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

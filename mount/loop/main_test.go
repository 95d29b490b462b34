package loop_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// childFile is set in the environment of a child process, which attaches that file and does nothing else.
const childFile = "VOLUMEKIT_LOOP_TEST_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childFile); path != "" {
		if _, err := loop.New(loop.Options{}).Attach(context.Background(), path, loop.AttachOptions{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	mounttest.Main(m)
}

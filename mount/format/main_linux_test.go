package format_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) {
	faultrun.Main()
	if path := os.Getenv(envGrower); path != "" {
		if err := growRecoverable(context.Background(), path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	mounttest.Main(m)
}

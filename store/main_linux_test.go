package store_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/internal/leak"
)

func TestMain(m *testing.M) {
	faultrun.Main()
	if path := os.Getenv(envVictim); path != "" {
		if err := victim(context.Background(), path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(leak.Run(m))
}

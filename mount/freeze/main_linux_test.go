package freeze_test

import (
	"os"
	"testing"

	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) {
	if os.Getenv(freezerVariable) != "" {
		freezeForEver()
	}
	mounttest.Main(m)
}

package rootlock

import (
	"testing"

	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

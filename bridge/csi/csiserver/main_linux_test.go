package csiserver_test

import (
	"testing"

	"github.com/volumekit/volumekit/bridge/csi/internal/csitest"
	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) {
	csitest.Main()
	faultrun.Main()
	mounttest.Main(m)
}

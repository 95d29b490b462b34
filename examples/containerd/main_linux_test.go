package main

import (
	"testing"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) {
	faultrun.Main()
	mounttest.Main(m)
}

package volumetest

import (
	"errors"
	"time"

	"github.com/volumekit/volumekit/volume"
)

// midwayPoints is how many moments of a call are tried for the end of its context.
const midwayPoints = 8

// timeOf returns how long a call takes.
func timeOf(call func()) time.Duration {
	begun := time.Now()
	call()
	return time.Since(begun)
}

// isUncertain reports whether err says that the effect may be there.
func isUncertain(err error) bool {
	if errors.Is(err, volume.ErrUncertain) {
		return true
	}
	var u interface{ Uncertain() bool }
	return errors.As(err, &u) && u.Uncertain()
}

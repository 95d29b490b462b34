//go:build !race

package attachdetach_test

// raceDetector makes everything many times slower.
const raceDetector = false

// replaysByDefault is how often a seed that found a bug has to find it again.
const replaysByDefault = 1

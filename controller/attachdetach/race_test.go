//go:build race

package attachdetach_test

// raceDetector makes everything many times slower.
const raceDetector = true

// replaysByDefault is how often a seed that found a bug has to find it again: the run without the race detector compares traces.
const replaysByDefault = 0

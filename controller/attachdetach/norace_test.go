//go:build !race

package attachdetach_test

// raceDetector makes everything many times slower.
const raceDetector = false

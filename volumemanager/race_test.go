//go:build race

package volumemanager

// raceDetector makes everything many times slower.
const raceDetector = true

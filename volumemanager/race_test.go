//go:build race

package volumemanager

// raceDetector has the runtime choose at random which goroutine runs next, so that a trace is not the same each time.
const raceDetector = true

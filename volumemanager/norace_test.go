//go:build !race

package volumemanager

const raceDetector = false

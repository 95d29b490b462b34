//go:build race

package main

// raceDetector makes everything many times slower.
const raceDetector = true

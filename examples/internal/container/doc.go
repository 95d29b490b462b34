// Package container stands in for a container runtime: it binds the volumes of pods where their containers would see them, and writes
// and reads in the containers' place.
package container

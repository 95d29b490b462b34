// Package container replaces a container runtime in the examples: it binds the volumes of pods at the paths of their
// containers, and writes and reads as the containers would.
package container

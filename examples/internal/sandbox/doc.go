// Package sandbox gives an example a private mount namespace (also without root, in a user namespace) and a root
// directory. It finds the mounts, loop devices and files that the example leaves there. Your own program needs none of
// it.
package sandbox

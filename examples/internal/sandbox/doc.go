// Package sandbox gives an example a place of its own on the machine, and looks for what it leaves there: a private mount namespace
// (also without root, in a user namespace), a root directory, and what is still mounted or attached in it. A program of your own
// needs none of it.
package sandbox

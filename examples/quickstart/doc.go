// Quickstart mounts real volumes for a real pod on this machine, uses them, and takes them away again.
//
//	go run ./examples/quickstart
//
// It needs no server, no cluster and no configuration. Read main.go first: the function tell is the whole story.
//
//   - agent.go is a node agent: a store, the controller that binds and provisions claims, the volume manager. This is
//     the part that a program of your own would copy; reclaim.go deletes claims and waits for their volumes to go.
//   - describe.go measures what is mounted; stages.go is what the program says; page.go serves a page.
//
// What is not about volumes lies in ../internal: sandbox (a private mount namespace, what is left in it), manifest (reads and
// checks), container (plays the container runtime), show (prints).
//
// Flags:
//
//	-f FILE        the manifests to use, YAML or JSON, several documents; "-" reads standard input
//	-root DIR      the directory under which everything is made; it must be new or empty
//	-timeout TIME  how long the pods may take to become ready, and to go
//	-json          one JSON document per line on standard output; the story goes to standard error
//	-keep          leave everything mounted until Ctrl-C, and say how to look at it
//	-http ADDRESS  serve a page that shows where every volume stands, such as 127.0.0.1:8080
//
// Any signal that ends a program ends this one in an orderly way: the volumes are taken away first. SIGKILL cannot be
// handled: mounts go with the namespace all the same, files and loop devices stay under the root directory. (A program
// that starts again on the same directories recovers from that; this one starts afresh each time.)
//
// The exit code is 0 when all went well, 1 when something failed, 2 when the flags or the manifests are wrong, and 128
// plus the signal's number when a signal cut the story short.
package main

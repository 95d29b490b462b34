// Orchestrator is a small node agent that embeds the volume manager and survives everything: it is what the author of an
// orchestrator copies. It runs no containers: it prepares what a runtime is told, and where they would be
// started and stopped, a comment says so.
//
//	mkdir /tmp/wanted && cp examples/orchestrator/manifests/* /tmp/wanted
//	go build -o /tmp/orchestrator ./examples/orchestrator
//	sudo /tmp/orchestrator -manifests /tmp/wanted -root /var/lib/orchestrator -run /run/orchestrator
//
// What is wanted are the pods, claims, classes and volumes in the files of one directory, JSON or YAML. They are read at
// the start and again with every SIGHUP: a pod that is new gets its volumes, one that is gone loses them, a claim that is
// gone is deleted, with its volume if its class says so. SIGTERM ends the agent; what is mounted stays mounted, and the
// next start takes it over. So it does when the agent was killed, at any instant.
//
// Read main.go first, then:
//
//   - agent.go puts the parts together: plugins, database, the controllers that give claims their volumes and make these larger, the manager.
//   - sync.go makes the node what the manifests say, and pods.go is the life of a pod, step by step; objects.go is about the
//     rest: claims, volumes, classes. sizes.go is about claims that ask for more.
//   - database.go keeps the objects over restarts. An orchestrator has a database of its own; see there what it must do.
//   - manifests.go reads the directory, output.go prints.
//
// README.md in this folder tells how to try it, and what its tests show.
package main

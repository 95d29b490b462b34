// Package inspect shows over HTTP why a pod waits for its volumes, and what waits in a cluster.
//
// [NewNode] makes an [http.Handler] of a node's volume manager. It serves three views of one answer, each for GET and HEAD:
//
//	/              a page for browsers; with JavaScript it is kept up to date
//	/v1/node       JSON, under the names of [NodeAnswer]
//	/v1/node.txt   a table for people, for curl
//
// A fourth says when the answer has changed:
//
//	/v1/events     server-sent events, "change" each time; without content
//
// Two more are for those who watch the agent, in words:
//
//	/readyz        200 while Run works and all pods were added (PodsComplete), otherwise 503 and what is missing
//	/livez         200 when the manager answers; it does not answer when the manager does not
//
// A server that hangs, or a volume that cannot be mounted, makes no agent unready: the other pods go on.
//
// An embedder mounts it where it wants:
//
//	history := inspect.NewHistory(inspect.HistoryOptions{}) // volumemanager.Options.Observer, too
//	mux.Handle("/volumes/", http.StripPrefix("/volumes", inspect.NewNode(manager, inspect.NodeOptions{History: history})))
//
// A [History] remembers what was done for each volume, for its time line.
//
// What needs attention comes first: volumes on which a call hangs, then those with an error or a condition that is not
// normal, then those on their way, and last those that are as they should be.
//
// These parameters of the query narrow the answer; those that are left out narrow nothing:
//
//	pod      a pod's UID, its name, or its namespace/name
//	plugin   a plugin's name
//	phase    a phase, as in [volumemanager.Phase]
//	offset   how many of the volumes that match are left out at the beginning
//	limit    how many volumes are listed: 500 without it, at most 100000; on the page 100, at most 500
//	stacks   with the value 1, each hung call has the stack of its goroutine
//	usage    with the value 1, each volume has how full it was; what is older than a minute is measured for a later request
//
// [NewCluster] makes a handler of the controllers of a cluster: claims that wait, attachments, leaders. It has the same views, at
// /v1/cluster and /v1/cluster.txt, and the parameters node, plugin, phase, offset and limit.
//
// # Guarantees
//
// A request reads copies ([Node.Status]) and writes after that: no lock of a manager is held while a client reads. Nothing
// runs between requests, and nothing but a History keeps anything. No plugin and no storage is waited for.
//
// A stream of events costs a goroutine while it is open, and no memory however slowly its client reads. At most 64 are open.
//
// Each text of an answer is valid UTF-8 and at most 1 KiB long, a stack 16 KiB. Each list has a longest length. In the table
// every character that does not print is escaped.
//
// The handler adds nothing to what the manager reports, and the manager reports no secret. Paths, names and errors are in an
// answer: let only operators reach the handler. It does not check who sends a request.
package inspect

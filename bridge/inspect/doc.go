// Package inspect shows over HTTP why a pod waits for its volumes, and what waits in a cluster.
//
// [NewNode] returns an [http.Handler] for a node's volume manager. It serves three views of one answer, each for GET
// and HEAD:
//
//	/              a page for browsers; with JavaScript it is kept up to date
//	/v1/node       JSON, under the names of [NodeAnswer]
//	/v1/node.txt   a table for people, for curl
//
// A fourth view reports changes of the answer:
//
//	/v1/events     server-sent events, "change" each time; without content
//
// Two more are probes of the agent:
//
//	/readyz        200 while Run works and all pods were added (PodsComplete), otherwise 503 and what is missing
//	/livez         200 when the manager answers; it does not answer when the manager does not
//
// A hung server, or a volume that cannot be mounted, does not make the agent unready: the other pods continue.
//
// An embedder mounts it where it wants:
//
//	history := inspect.NewHistory(inspect.HistoryOptions{}) // volumemanager.Options.Observer, too
//	mux.Handle("/volumes/", http.StripPrefix("/volumes", inspect.NewNode(manager, inspect.NodeOptions{History: history})))
//
// A [History] remembers the last operations of each volume, for its time line.
//
// Volumes that need attention come first: those with a hung call, then those with an error or an abnormal condition,
// then those in progress, and last those that are mounted or released.
//
// These parameters of the query filter the answer:
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
// A request reads copies ([Node.Status]) and then writes: it holds no lock of a manager while a client reads. Nothing
// runs between requests, and only a History keeps data. A request does not wait for a plugin or for storage.
//
// A client that has not read an answer after a minute is cut off, where the server's responses have deadlines.
//
// An open stream of events costs one goroutine, and no more memory if its client reads slowly. At most 64 streams are
// open.
//
// Each text of an answer is valid UTF-8 of at most 1 KiB, a stack of at most 16 KiB. Each list has a maximum length. In
// the table every character that does not print is escaped.
//
// The handler adds nothing to what the manager reports, and the manager reports no secret. Paths, names and errors are in an
// answer: let only operators reach the handler. It does not check who sends a request.
package inspect

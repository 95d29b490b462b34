package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager"
)

// Node is the part of a node's manager that a handler reads. A [volumemanager.Manager] is one.
type Node interface {
	// Status returns every volume of the node with its phase.
	Status() volumemanager.NodeStatus
	// Hung returns the calls of plugins that were abandoned and still run.
	Hung() []operationexecutor.HungCall
	// PodStats returns the last measurements of a pod's volumes, and starts new ones for those older than maxAge.
	PodStats(uid types.UID, maxAge time.Duration) []volumemanager.VolumeStats
	// Subscribe returns the changes of the volumes, until ctx or the manager's Run ends.
	Subscribe(ctx context.Context) iter.Seq[volumemanager.Change]
}

// NodeOptions configures a node's handler.
type NodeOptions struct {
	// History has the operations of the time lines. If it is nil, a time line has only the times at which a volume was
	// requested and resolved.
	History *History
}

// NewNode returns a handler that shows node. It starts no goroutine.
func NewNode(node Node, options NodeOptions) http.Handler {
	n := nodeHandler{node: node, options: options, streams: newStreams()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/node", n.serve("application/json", listLimits, writeJSON))
	mux.HandleFunc("GET /v1/node.txt", n.serve("text/plain; charset=utf-8", listLimits, writeText))
	mux.HandleFunc("GET /v1/events", n.events)
	mux.HandleFunc("GET /readyz", ready(node))
	mux.HandleFunc("GET /livez", alive(node))
	mux.HandleFunc("GET /live.js", serveScript)
	mux.HandleFunc("GET /{$}", n.serve("text/html; charset=utf-8", pageLimits, writePage))
	return mux
}

// nodeHandler answers requests about one node.
type nodeHandler struct {
	node    Node
	options NodeOptions
	streams streams
}

// serve answers a request: it reads the query and the node, and writes the answer with write.
func (n nodeHandler) serve(contentType string, l limits, write func(*bytes.Buffer, NodeAnswer, query) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := readQuery(r.URL.RawQuery, l)
		if err != nil {
			refuse(w, err)
			return
		}
		var body bytes.Buffer
		if err := write(&body, n.answer(q), q); err != nil {
			setHeaders(w)
			http.Error(w, "inspect: the answer could not be written", http.StatusInternalServerError)
			return
		}
		send(w, r, contentType, body.Bytes())
	}
}

// answer returns the answer to q. Only the volumes in it get their usage and operations.
func (n nodeHandler) answer(q query) NodeAnswer {
	a := answer(n.node.Status(), n.node.Hung(), q)
	for i := range a.Volumes {
		v := &a.Volumes[i]
		v.Operations = n.options.History.of(v.name, v.pod)
	}
	if q.usage == withUsage {
		n.addUsage(a.Volumes)
	}
	return a
}

// usageAge is the age of a measurement at which a new one starts.
const usageAge = time.Minute

// addUsage adds the last measurement of each volume, and starts new ones of those that are too old.
func (n nodeHandler) addUsage(volumes []Volume) {
	ofPod := make(map[types.UID][]volumemanager.VolumeStats)
	for i := range volumes {
		v := &volumes[i]
		uid := types.UID(v.pod)
		if uid == "" {
			continue
		}
		stats, asked := ofPod[uid]
		if !asked {
			stats = n.node.PodStats(uid, usageAge)
			ofPod[uid] = stats
		}
		at := slices.IndexFunc(stats, func(s volumemanager.VolumeStats) bool { return s.Volume == v.name && text(s.OuterName) == v.Name })
		if at >= 0 {
			v.Usage = usageOf(stats[at])
		}
	}
}

// events notifies a browser when a volume that matches its query has changed.
func (n nodeHandler) events(w http.ResponseWriter, r *http.Request) {
	q, err := readQuery(r.URL.RawQuery, pageLimits)
	if err != nil {
		refuse(w, err)
		return
	}
	setHeaders(w)
	n.streams.serve(w, r, func(ctx context.Context) iter.Seq[struct{}] {
		return func(yield func(struct{}) bool) {
			for change := range n.node.Subscribe(ctx) {
				// A pod or a volume that is gone has no volumes, and may have been one of the query's.
				asked := len(change.Volumes) == 0 || slices.ContainsFunc(change.Volumes, q.matches)
				if asked && !yield(struct{}{}) {
					return
				}
			}
		}
	})
}

// setHeaders forbids caching of an answer, and every script in it but the handler's own.
func setHeaders(w http.ResponseWriter) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	w.Header().Set("Referrer-Policy", "no-referrer")
}

// readTimeout is the time in which a client must read an answer. A client that does not would hold the answer in memory.
const readTimeout = time.Minute

// send writes a whole answer.
func send(w http.ResponseWriter, r *http.Request, contentType string, body []byte) {
	setHeaders(w)
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	// A response without deadlines is the embedder's own.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTimeout))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have closed the connection
	}
}

// refuse answers a wrong request.
func refuse(w http.ResponseWriter, err error) {
	setHeaders(w)
	http.Error(w, err.Error(), http.StatusBadRequest)
}

func writeJSON(b *bytes.Buffer, a NodeAnswer, _ query) error {
	return json.NewEncoder(b).Encode(a)
}

// query holds the parameters of a request.
type query struct {
	pod, node, plugin, phase string
	offset, limit            int
	stacks                   stacks
	usage                    usage
}

// stacks says whether to read the stacks of hung calls. All goroutines stop for a moment for each.
type stacks string

const (
	withoutStacks stacks = ""
	withStacks    stacks = "1"
)

// usage says whether the answer has measurements.
type usage string

const (
	withoutUsage usage = ""
	withUsage    usage = "1"
)

// limits are the default and the largest number of volumes in an answer.
type limits struct{ usual, most int }

var (
	listLimits = limits{usual: 500, most: 100_000}
	pageLimits = limits{usual: 100, most: 500}
)

// readQuery reads the parameters of a request. Its errors do not quote the request.
func readQuery(raw string, l limits) (query, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return query{}, errors.New("inspect: the query cannot be read")
	}
	q := query{
		pod: values.Get("pod"), node: values.Get("node"), plugin: values.Get("plugin"), phase: values.Get("phase"),
		limit: l.usual, stacks: stacks(values.Get("stacks")), usage: usage(values.Get("usage")),
	}
	if q.stacks != withStacks && q.stacks != withoutStacks {
		return query{}, errors.New("inspect: stacks is 1, or left out")
	}
	if q.usage != withUsage && q.usage != withoutUsage {
		return query{}, errors.New("inspect: usage is 1, or left out")
	}
	if s := values.Get("offset"); s != "" {
		if q.offset, err = strconv.Atoi(s); err != nil || q.offset < 0 {
			return query{}, errors.New("inspect: offset is a number from 0")
		}
	}
	if s := values.Get("limit"); s != "" {
		if q.limit, err = strconv.Atoi(s); err != nil || q.limit < 1 || q.limit > l.most {
			return query{}, fmt.Errorf("inspect: limit is a number from 1 to %d", l.most)
		}
	}
	return q, nil
}

// matches reports whether the volume matches the query.
func (q query) matches(s volumemanager.VolumeStatus) bool {
	pod := q.pod == "" || q.pod == string(s.PodUID) || q.pod == s.PodName.Name || q.pod == s.PodName.Namespace+"/"+s.PodName.Name
	return pod && (q.plugin == "" || q.plugin == s.Plugin) && (q.phase == "" || q.phase == string(s.Phase))
}

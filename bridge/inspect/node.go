package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager"
)

// Node is what a handler reads of a node. A [volumemanager.Manager] is one.
type Node interface {
	// Status returns where every volume on the node stands.
	Status() volumemanager.NodeStatus
	// Hung returns the calls of plugins that were abandoned and still run.
	Hung() []operationexecutor.HungCall
}

// NewNode returns a handler that shows node. It starts nothing.
func NewNode(node Node) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/node", serve(node, "application/json", listLimits, writeJSON))
	mux.HandleFunc("GET /v1/node.txt", serve(node, "text/plain; charset=utf-8", listLimits, writeText))
	mux.HandleFunc("GET /readyz", ready(node))
	mux.HandleFunc("GET /livez", alive(node))
	mux.HandleFunc("GET /{$}", serve(node, "text/html; charset=utf-8", pageLimits, writePage))
	return mux
}

// serve answers a request: it reads the query, then the node, and writes what write makes of the answer.
func serve(node Node, contentType string, l limits, write func(*bytes.Buffer, NodeAnswer, query) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		w.Header().Set("Referrer-Policy", "no-referrer")
		q, err := readQuery(r.URL.RawQuery, l)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var body bytes.Buffer
		if err := write(&body, answer(node.Status(), node.Hung(), q), q); err != nil {
			http.Error(w, "inspect: the answer could not be written", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
		if r.Method != http.MethodHead {
			_, _ = w.Write(body.Bytes()) // the client may have gone
		}
	}
}

func writeJSON(b *bytes.Buffer, a NodeAnswer, _ query) error {
	return json.NewEncoder(b).Encode(a)
}

// query is what a request asks for.
type query struct {
	pod, plugin, phase string
	offset, limit      int
	stacks             stacks
}

// stacks says whether the stacks of hung calls are read. All goroutines stop for a moment while one is.
type stacks string

const (
	withoutStacks stacks = ""
	withStacks    stacks = "1"
)

// limits say how many volumes an answer has: usually, and at most.
type limits struct{ usual, most int }

var (
	listLimits = limits{usual: 500, most: 100_000}
	pageLimits = limits{usual: 100, most: 500}
)

// readQuery reads the parameters of a request. Its errors repeat nothing of the request.
func readQuery(raw string, l limits) (query, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return query{}, errors.New("inspect: the query cannot be read")
	}
	q := query{
		pod: values.Get("pod"), plugin: values.Get("plugin"), phase: values.Get("phase"),
		limit: l.usual, stacks: stacks(values.Get("stacks")),
	}
	if q.stacks != withStacks && q.stacks != withoutStacks {
		return query{}, errors.New("inspect: stacks is 1, or left out")
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

// matches reports whether the query asks for the volume.
func (q query) matches(s volumemanager.VolumeStatus) bool {
	pod := q.pod == "" || q.pod == string(s.PodUID) || q.pod == s.PodName.Name || q.pod == s.PodName.Namespace+"/"+s.PodName.Name
	return pod && (q.plugin == "" || q.plugin == s.Plugin) && (q.phase == "" || q.phase == string(s.Phase))
}

package inspect

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"iter"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/operationexecutor"
)

// AttachController is the part of an [attachdetach.Controller] that a cluster's handler reads. Its methods answer from memory.
type AttachController interface {
	// Status returns every attachment with its phase.
	Status() []attachdetach.AttachmentStatus
	// Hung returns the calls of plugins that were abandoned and still run.
	Hung() []operationexecutor.HungCall
}

// ClaimController is the part of a [persistentvolume.Controller] that a cluster's handler reads. Its method answers from memory.
type ClaimController interface {
	// Pending returns the claims that have no volume, with the reasons.
	Pending() []persistentvolume.PendingClaim
}

// ClusterSources are what a cluster's handler reads. The answers omit a part that is nil: a process that does not lead
// has no controllers, and shows only the leases.
type ClusterSources struct {
	// Attachments is the controller of attachments.
	Attachments AttachController
	// Claims is the controller of claims.
	Claims ClaimController
	// Leases are the leases of the controllers, such as those of a mirror. The handler does not change them.
	Leases []*coordinationv1.Lease
}

// NewCluster returns a handler that shows a cluster. It starts no goroutine. It calls sources for each request, because
// a process gets new controllers each time that it leads. sources must return at once, and may be called from several
// goroutines at once.
func NewCluster(sources func() ClusterSources) http.Handler {
	c := clusterHandler{sources: sources, streams: newStreams(), seed: maphash.MakeSeed()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/cluster", c.serve("application/json", listLimits, writeClusterJSON))
	mux.HandleFunc("GET /v1/cluster.txt", c.serve("text/plain; charset=utf-8", listLimits, writeClusterText))
	mux.HandleFunc("GET /v1/events", c.events)
	mux.HandleFunc("GET /live.js", serveScript)
	mux.HandleFunc("GET /{$}", c.serve("text/html; charset=utf-8", pageLimits, writeClusterPage))
	return mux
}

// clusterHandler answers requests about a cluster.
type clusterHandler struct {
	sources func() ClusterSources
	streams streams
	seed    maphash.Seed
}

// clusterQuery holds the parameters of a request about a cluster.
type clusterQuery struct {
	node, plugin, phase string
	offset, limit       int
}

// serve answers a request: it reads the query and the controllers, and writes the answer with write.
func (c clusterHandler) serve(contentType string, l limits, write func(*bytes.Buffer, ClusterAnswer, clusterQuery) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := readClusterQuery(r.URL.RawQuery, l)
		if err != nil {
			refuse(w, err)
			return
		}
		var body bytes.Buffer
		if err := write(&body, clusterAnswer(c.sources(), q), q); err != nil {
			setHeaders(w)
			http.Error(w, "inspect: the answer could not be written", http.StatusInternalServerError)
			return
		}
		send(w, r, contentType, body.Bytes())
	}
}

// readClusterQuery reads the parameters of a request. Its errors do not quote the request.
func readClusterQuery(raw string, l limits) (clusterQuery, error) {
	q, err := readQuery(raw, l)
	if err != nil {
		return clusterQuery{}, err
	}
	if q.pod != "" || q.stacks != withoutStacks || q.usage != withoutUsage {
		return clusterQuery{}, errors.New("inspect: of a cluster, the parameters are node, plugin, phase, offset and limit")
	}
	return clusterQuery{node: q.node, plugin: q.plugin, phase: q.phase, offset: q.offset, limit: q.limit}, nil
}

// pollInterval is the interval at which a stream reads the controllers, which send no events.
const pollInterval = time.Second

// events notifies a browser when the answer to its query has changed.
func (c clusterHandler) events(w http.ResponseWriter, r *http.Request) {
	q, err := readClusterQuery(r.URL.RawQuery, pageLimits)
	if err != nil {
		refuse(w, err)
		return
	}
	setHeaders(w)
	c.streams.serve(w, r, func(ctx context.Context) iter.Seq[struct{}] {
		return func(yield func(struct{}) bool) {
			var last uint64
			for {
				if now := c.sum(q); now != last {
					last = now
					if !yield(struct{}{}) {
						return
					}
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(pollInterval):
				}
			}
		}
	})
}

// sum returns a hash of the answer to a query.
func (c clusterHandler) sum(q clusterQuery) uint64 {
	var body bytes.Buffer
	if err := writeClusterJSON(&body, clusterAnswer(c.sources(), q), q); err != nil {
		return 0
	}
	return maphash.Bytes(c.seed, body.Bytes())
}

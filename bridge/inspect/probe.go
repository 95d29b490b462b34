package inspect

import (
	"fmt"
	"net/http"
)

// ready answers whether a node's manager works and knows all pods.
func ready(node Node) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		status := node.Status()
		if missing := missingOf(status.Running, status.PodsComplete); missing != "" {
			writeLine(w, http.StatusServiceUnavailable, missing)
			return
		}
		writeLine(w, http.StatusOK, "ready")
	}
}

// missingOf says why a manager is not ready; empty if it is ready.
func missingOf(running, podsComplete bool) string {
	switch {
	case !running:
		return "not ready: Run does not work, or has not read its records yet"
	case !podsComplete:
		return "not ready: not all pods were added since the start (PodsComplete)"
	}
	return ""
}

// alive answers if a node's manager responds.
func alive(node Node) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		node.Status()
		writeLine(w, http.StatusOK, "alive")
	}
}

// writeLine writes one line.
func writeLine(w http.ResponseWriter, code int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, line) // the client may have closed the connection
}

package main

import (
	"encoding/json"
	"net/http"
	"strings"
)

// serveAPI serves the part of the Kubernetes API that a sidecar needs to start and
// to wait for work: every list is empty, and no watch sends an event.
func serveAPI(listen string) error {
	return http.ListenAndServe(listen, http.HandlerFunc(answerAPI))
}

func answerAPI(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group := len(parts) == 2 && parts[0] == "api" || len(parts) == 3 && parts[0] == "apis"
	switch {
	case r.URL.Path == "/version":
		write(w, http.StatusOK, map[string]any{"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
	case group:
		write(w, http.StatusOK, map[string]any{
			"kind":         "APIResourceList",
			"apiVersion":   "v1",
			"groupVersion": strings.Join(parts[1:], "/"),
			"resources":    []any{},
		})
	case r.Method != http.MethodGet:
		write(w, http.StatusCreated, map[string]any{})
	case query.Get("sendInitialEvents") != "":
		// The client falls back to list and watch, as with servers without streaming lists.
		write(w, http.StatusUnprocessableEntity, map[string]any{
			"kind":       "Status",
			"apiVersion": "v1",
			"status":     "Failure",
			"reason":     "Invalid",
			"code":       http.StatusUnprocessableEntity,
		})
	case query.Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		write(w, http.StatusOK, map[string]any{
			"metadata": map[string]any{"resourceVersion": "1"},
			"items":    []any{},
		})
	}
}

func write(w http.ResponseWriter, status int, body map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
)

// In managedFields the same texts are escaped or have a prefix.
var (
	approvedBytes = []byte(`"type":"Approved"`)
	deniedBytes   = []byte(`"type":"Denied"`)
	issuedBytes   = []byte(`"certificate":"`)
	userBytes     = []byte(`"username":"` + nodeUser)
)

// hear handles one watch event. It searches for texts instead of decoding the event.
func (r *Requests) hear(line []byte, now float64) error {
	kind, name, ok := head(line)
	if !ok {
		return fmt.Errorf("unreadable or failed: %.200s", line)
	}
	node := requester(line)
	if node == "" {
		return nil // not a request of a node
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events++
	if kind == "DELETED" {
		r.forget(name)
		r.tell()
		return nil
	}
	request := r.known(name, node)
	if kind == "MODIFIED" {
		request.Writes++
	}
	request.note(
		bytes.Contains(line, approvedBytes), bytes.Contains(line, deniedBytes), bytes.Contains(line, issuedBytes), now)
	r.tell()
	return nil
}

// replace handles a list of all requests.
func (r *Requests) replace(text []byte, now float64) error {
	items, err := requestsIn(text)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	present := map[string]bool{}
	for _, item := range items {
		node, isNode := strings.CutPrefix(item.Spec.Username, nodeUser)
		if !isNode {
			continue
		}
		present[item.Metadata.Name] = true
		request := r.known(item.Metadata.Name, node)
		request.note(item.has("Approved"), item.has("Denied"), item.Status.Certificate != "", now)
	}
	for name, request := range r.byName {
		if !present[name] && request.Filed != 0 {
			r.forget(name)
		}
	}
	r.tell()
	return nil
}

type listed struct {
	Metadata struct {
		Name              string `json:"name"`
		CreationTimestamp string `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Username string `json:"username"`
	} `json:"spec"`
	Status struct {
		Certificate string `json:"certificate"`
		Conditions  []struct {
			Type string `json:"type"`
		} `json:"conditions"`
	} `json:"status"`
}

// requestsIn returns the items of a list, the oldest first.
func requestsIn(text []byte) ([]listed, error) {
	var items []listed
	err := json.Unmarshal(text, &items)
	sort.SliceStable(items, func(i, j int) bool {
		return items[i].Metadata.CreationTimestamp < items[j].Metadata.CreationTimestamp
	})
	return items, err
}

func (l *listed) has(condition string) bool {
	for _, each := range l.Status.Conditions {
		if each.Type == condition {
			return true
		}
	}
	return false
}

// requester returns the node that created the request, from the user name in the event; "" for other users.
func requester(line []byte) string {
	start := bytes.Index(line, userBytes)
	if start < 0 {
		return ""
	}
	rest := line[start+len(userBytes):]
	return string(rest[:max(bytes.IndexByte(rest, '"'), 0)])
}

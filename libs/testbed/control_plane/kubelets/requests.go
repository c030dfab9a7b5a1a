package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
)

const (
	requestsPath  = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	requestsQuery = "fieldSelector=spec.signerName%3Dkubernetes.io%2Fkubelet-serving"
	nodeUser      = "system:node:"
)

// Request has the times of one certificate request, in Unix seconds; 0: not yet.
type Request struct {
	Name     string  `json:"name"`
	Node     string  `json:"node"`
	Begun    float64 `json:"begun"` // before it was sent; 0: sent by another process
	Filed    float64 `json:"filed"` // the watch showed it
	Approved float64 `json:"approved"`
	Issued   float64 `json:"issued"`
}

// Requests are the nodes' requests for serving certificates that the watch has shown.
type Requests struct {
	News
	byName map[string]*Request
	byNode map[string][]*Request // in the order of creation
}

func newRequests() *Requests {
	return &Requests{News: newNews(), byName: map[string]*Request{}, byNode: map[string][]*Request{}}
}

// Sent records a created request; the watch may have shown it before.
func (r *Requests) Sent(name, node string, begun float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known(name, node).Begun = begun
}

// Of returns all requests of these nodes, those of a node in the order of creation.
func (r *Requests) Of(nodes []string) []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := []Request{}
	for _, node := range nodes {
		for _, request := range r.byNode[node] {
			found = append(found, *request)
		}
	}
	return found
}

// Newest returns the last request of each node; for a node without requests it has no name.
func (r *Requests) Newest(nodes []string) []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := make([]Request, len(nodes))
	for i, node := range nodes {
		if filed := r.byNode[node]; len(filed) > 0 {
			found[i] = *filed[len(filed)-1]
		}
	}
	return found
}

// Issued returns the number of leading nodes whose newest request has its certificate.
func (r *Requests) Issued(nodes []string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, node := range nodes {
		filed := r.byNode[node]
		if len(filed) == 0 || filed[len(filed)-1].Issued == 0 {
			return i
		}
	}
	return len(nodes)
}

// Gone returns whether the watch shows none of these requests.
func (r *Requests) Gone(requests []Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, request := range requests {
		if _, known := r.byName[request.Name]; known {
			return false
		}
	}
	return true
}

func (r *Request) note(approved, issued bool, now float64) {
	for _, step := range []struct {
		reached bool
		when    *float64
	}{{true, &r.Filed}, {approved, &r.Approved}, {issued, &r.Issued}} {
		if step.reached && *step.when == 0 {
			*step.when = now
		}
	}
}

func (r *Requests) known(name, node string) *Request {
	request, known := r.byName[name]
	if !known {
		request = &Request{Name: name, Node: node}
		r.byName[name] = request
		r.byNode[node] = append(r.byNode[node], request)
	}
	return request
}

func (r *Requests) forget(name string) {
	request, known := r.byName[name]
	if !known {
		return
	}
	delete(r.byName, name)
	left := r.byNode[request.Node][:0]
	for _, each := range r.byNode[request.Node] {
		if each != request {
			left = append(left, each)
		}
	}
	if len(left) == 0 {
		delete(r.byNode, request.Node)
		return
	}
	r.byNode[request.Node] = left
}

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
	if kind == "DELETED" {
		r.forget(name)
		r.tell()
		return nil
	}
	r.known(name, node).note(bytes.Contains(line, approvedBytes), bytes.Contains(line, issuedBytes), now)
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
		r.known(item.Metadata.Name, node).note(item.has("Approved"), item.Status.Certificate != "", now)
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

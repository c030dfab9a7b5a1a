package main

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Nodes are the facts that the watch has shown of each node, with times of this machine's clock in Unix seconds.
type Nodes struct {
	News
	nodes map[string]*seen
}

type seen struct {
	untainted float64            // when it was first without the uninitialized taint; 0: not yet
	served    float64            // when it first had podCIDRs; 0: not yet
	expected  map[string]float64 // expected texts, and when the watch first showed them
}

func newNodes() *Nodes {
	return &Nodes{News: newNews(), nodes: map[string]*seen{}}
}

// Times returns when each of these nodes was first seen without the taint, and with podCIDRs; 0: not yet.
func (n *Nodes) Times(names []string) (untainted, served []float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	untainted, served = make([]float64, len(names)), make([]float64, len(names))
	for i, name := range names {
		if s, known := n.nodes[name]; known {
			untainted[i], served[i] = s.untainted, s.served
		}
	}
	return untainted, served
}

// Initialized returns the number of leading nodes that have lost the taint.
func (n *Nodes) Initialized(names []string) int {
	return n.leading(names, func(s *seen) bool { return s.untainted != 0 })
}

// Served returns the number of leading nodes that have podCIDRs.
func (n *Nodes) Served(names []string) int {
	return n.leading(names, func(s *seen) bool { return s.served != 0 })
}

func (n *Nodes) leading(names []string, done func(*seen) bool) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, name := range names {
		if s, known := n.nodes[name]; !known || !done(s) {
			return i
		}
	}
	return len(names)
}

// Expect replaces the expected text of each node and records when the node first shows it: an address, or the
// value of a label.
func (n *Nodes) Expect(texts map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, text := range texts {
		s, known := n.nodes[name]
		if !known {
			s = &seen{}
			n.nodes[name] = s
		}
		s.expected = map[string]float64{text: 0}
	}
}

// Shown returns when each node showed its expected text, without those that did not.
func (n *Nodes) Shown(texts map[string]string) map[string]float64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	shown := map[string]float64{}
	for name, text := range texts {
		if s, known := n.nodes[name]; known && s.expected[text] != 0 {
			shown[name] = s.expected[text]
		}
	}
	return shown
}

// Gone returns whether the watch shows none of these nodes.
func (n *Nodes) Gone(names []string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		if _, known := n.nodes[name]; known {
			return false
		}
	}
	return true
}

const taintKey = "node.cloudprovider.kubernetes.io/uninitialized"

var (
	taintBytes    = []byte(taintKey)
	podCIDRsBytes = []byte(`"podCIDRs":[`)
)

type node struct {
	Metadata struct {
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		PodCIDRs []string `json:"podCIDRs"`
		Taints   []struct {
			Key string `json:"key"`
		} `json:"taints"`
	} `json:"spec"`
	Status struct {
		Addresses []struct {
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"status"`
}

func (n *node) tainted() bool {
	for _, taint := range n.Spec.Taints {
		if taint.Key == taintKey {
			return true
		}
	}
	return false
}

// hear handles one watch event. It decodes a node only if there may be a new fact.
func (n *Nodes) hear(line []byte, now float64) error {
	kind, name, ok := head(line)
	if !ok {
		return fmt.Errorf("unreadable or failed: %.200s", line)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if kind == "DELETED" {
		delete(n.nodes, name)
		n.tell()
		return nil
	}
	s, known := n.nodes[name]
	if !known {
		s = &seen{}
		n.nodes[name] = s
	}
	mayBeUntainted := s.untainted == 0 && !bytes.Contains(line, taintBytes)
	mayBeServed := s.served == 0 && bytes.Contains(line, podCIDRsBytes)
	if !mayBeUntainted && !mayBeServed && s.expected == nil {
		return nil
	}
	var event struct {
		Object node `json:"object"`
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return err
	}
	if s.take(&event.Object, now) {
		n.tell()
	}
	return nil
}

// take records new facts of a node, and returns whether there are any.
func (s *seen) take(object *node, now float64) bool {
	news := false
	if s.untainted == 0 && !object.tainted() {
		s.untainted = now
		news = true
	}
	if s.served == 0 && len(object.Spec.PodCIDRs) > 0 {
		s.served = now
		news = true
	}
	for _, shown := range object.Status.Addresses {
		news = s.show(shown.Address, now) || news
	}
	if s.expected != nil {
		for _, value := range object.Metadata.Labels {
			news = s.show(value, now) || news
		}
	}
	return news
}

func (s *seen) show(text string, now float64) bool {
	when, expected := s.expected[text]
	if !expected || when != 0 {
		return false
	}
	s.expected[text] = now
	return true
}

// replace handles a list of all nodes.
func (n *Nodes) replace(text []byte, now float64) error {
	var items []node
	if err := json.Unmarshal(text, &items); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	present := map[string]*seen{}
	for i := range items {
		name := items[i].Metadata.Name
		s, known := n.nodes[name]
		if !known {
			s = &seen{}
		}
		s.take(&items[i], now)
		present[name] = s
	}
	n.nodes = present
	n.tell()
	return nil
}

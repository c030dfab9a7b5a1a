package main

import (
	"bytes"
	"encoding/json"
	"fmt"
)

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
	n.events++
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

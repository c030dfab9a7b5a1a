package main

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

package main

// Nodes is what the watch has shown of each node, and when. Times are this machine's clock, in Unix seconds.
type Nodes struct {
	News
	nodes map[string]*seen
}

type seen struct {
	untainted float64            // when it was first without the uninitialized taint; 0: not yet
	served    float64            // when it first had podCIDRs; 0: not yet
	expected  map[string]float64 // what somebody waits for, and when it was first shown
}

func newNodes() *Nodes {
	return &Nodes{News: newNews(), nodes: map[string]*seen{}}
}

// Times is when each of these nodes was first seen without the taint, and with podCIDRs; 0 where it was not.
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

// Initialized is how many of these nodes, from the first on and without a gap, have lost the taint.
func (n *Nodes) Initialized(names []string) int {
	return n.leading(names, func(s *seen) bool { return s.untainted != 0 })
}

// Served is how many of these nodes, from the first on and without a gap, have podCIDRs.
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

// Expect forgets what was expected before, and notes from now on when the node shows that text:
// an address, or the value of a label.
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

// Shown is when each node showed what was expected of it; only those that did.
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

// Gone is whether the watch shows none of these nodes.
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

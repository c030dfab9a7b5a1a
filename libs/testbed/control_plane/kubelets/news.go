package main

import (
	"context"
	"sync"
	"time"
)

// News guards what a watch has shown, and wakes those who wait for more.
type News struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced whenever somebody may have waited for what came
	restarts int
	events   int
}

func newNews() News {
	return News{changed: make(chan struct{})}
}

// WaitUntil returns whether the condition came true before the context ended. It is asked after each change.
func (n *News) WaitUntil(ctx context.Context, holds func() bool) bool {
	for {
		n.mu.Lock()
		changed := n.changed
		n.mu.Unlock()
		if holds() {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (n *News) tell() {
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *News) restarted() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.restarts++
}

func (n *News) restartCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.restarts
}

func (n *News) eventCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.events
}

func unix(moment time.Time) float64 {
	return float64(moment.UnixNano()) / 1e9
}

package main

import (
	"context"
	"sync"
	"time"
)

// News guards the state that a watch has shown, and wakes waiters at each change.
type News struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at each change that a waiter may need
	restarts int
	events   int
}

func newNews() News {
	return News{changed: make(chan struct{})}
}

// WaitUntil returns whether the condition became true before the context ended. It checks after each change.
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

package main

import (
	"context"
	"sync"
	"time"
)

// Joined has the times of one joining node, in Unix seconds.
type Joined struct {
	Name      string  `json:"name"`
	Begun     float64 `json:"begun"`     // before the first request of its kubelet
	Joined    float64 `json:"joined"`    // its kubelet has reported it ready, and requested its certificates
	Untainted float64 `json:"untainted"` // the watch showed it without the taint; 0: not yet
	Served    float64 `json:"served"`    // the watch showed it with podCIDRs; 0: not yet

	Request *Request `json:"request,omitempty"` // its last certificate request
}

// JoinResult is the result of "join".
type JoinResult struct {
	Nodes    []Joined `json:"nodes"`
	Restarts int      `json:"restarts"` // of the watch meanwhile; times of events that it missed are too late
}

func (c *Control) join(ctx context.Context, command Command, kubelets []Kubelet) (any, error) {
	ctx, cancel := within(ctx, command.Seconds)
	defer cancel()
	restarts := c.restarts()
	result := JoinResult{Nodes: make([]Joined, len(kubelets))}
	names := make([]string, len(kubelets))
	err := paced(ctx, command, len(kubelets), func(i int) error {
		names[i] = kubelets[i].Name
		joined := &result.Nodes[i]
		joined.Name, joined.Begun = kubelets[i].Name, unix(time.Now())
		if err := kubelets[i].Join(ctx, c.api); err != nil {
			return err
		}
		for range command.Certificates {
			if err := c.ask(ctx, names[i]); err != nil {
				return err
			}
		}
		joined.Joined = unix(time.Now())
		if command.OneAtATime && command.Untainted {
			c.awaitFinished(ctx, command, names[i:i+1])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if command.Untainted {
		c.awaitFinished(ctx, command, names)
	}
	if command.Certificates > 0 {
		for i, request := range c.requests.Newest(names) {
			result.Nodes[i].Request = &request
		}
	}
	untainted, served := c.nodes.Times(names)
	for i := range names {
		result.Nodes[i].Untainted, result.Nodes[i].Served = untainted[i], served[i]
	}
	result.Restarts = c.restarts() - restarts
	return result, nil
}

// awaitFinished waits until all nodes have lost the taint, have podCIDRs if requested, and have their
// certificate if they requested one.
func (c *Control) awaitFinished(ctx context.Context, command Command, names []string) {
	c.awaitUntainted(ctx, names)
	if command.Served {
		c.awaitAll(ctx, names, c.nodes.Served)
	}
	if command.Certificates > 0 {
		c.awaitIssued(ctx, names)
	}
}

func (c *Control) restarts() int {
	return c.nodes.restartCount() + c.requests.restartCount()
}

// awaitUntainted returns whether all nodes lost the taint before the context ended.
func (c *Control) awaitUntainted(ctx context.Context, names []string) bool {
	return c.awaitAll(ctx, names, c.nodes.Initialized)
}

func (c *Control) awaitAll(ctx context.Context, names []string, leading func([]string) int) bool {
	done := 0 // the number of leading names that are done
	return c.nodes.WaitUntil(ctx, func() bool {
		done += leading(names[done:])
		return done == len(names)
	})
}

// BeatResult is the result of "beat".
type BeatResult struct {
	Beats   int     `json:"beats"`
	Seconds float64 `json:"seconds"`
}

// beat lets every node send heartbeats for some time, evenly spread over the period.
func (c *Control) beat(ctx context.Context, command Command, kubelets []Kubelet) (any, error) {
	begun := time.Now()
	count := max(1, int(float64(len(kubelets))*command.Seconds/command.EverySeconds))
	pace := Command{PerSecond: float64(len(kubelets)) / command.EverySeconds, Concurrency: command.Concurrency}
	err := paced(ctx, pace, count, func(i int) error {
		return kubelets[i%len(kubelets)].Beat(ctx, c.api)
	})
	if err != nil {
		return nil, err
	}
	return BeatResult{count, time.Since(begun).Seconds()}, nil
}

// delete deletes nodes and their requests, and waits until the watches have shown all deletions.
func (c *Control) delete(ctx context.Context, command Command, kubelets []Kubelet) error {
	ctx, cancel := within(ctx, command.Seconds)
	defer cancel()
	if err := paced(ctx, command, len(kubelets), func(i int) error { return kubelets[i].Delete(ctx, c.api) }); err != nil {
		return err
	}
	if !c.nodes.WaitUntil(ctx, func() bool { return c.nodes.Gone(command.Names) }) {
		return ctx.Err()
	}
	return c.deleteRequests(ctx, command)
}

// paced calls a function `count` times at the pace of a command, and returns the first error.
func paced(ctx context.Context, command Command, count int, do func(int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	limit := command.Concurrency
	if limit <= 0 || limit > count {
		limit = count
	}
	if command.OneAtATime {
		limit = 1
	}
	next := make(chan int)
	var working sync.WaitGroup
	for range limit {
		working.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	begun := time.Now()
	for i := 0; i < count && ctx.Err() == nil; i++ {
		if command.PerSecond > 0 {
			due := begun.Add(time.Duration(float64(i) / command.PerSecond * float64(time.Second)))
			select {
			case <-time.After(time.Until(due)):
			case <-ctx.Done():
			}
		}
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	working.Wait()
	return context.Cause(ctx)
}

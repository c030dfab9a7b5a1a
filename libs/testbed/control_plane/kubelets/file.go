package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Requested is the result of "file".
type Requested struct {
	Requests []Request `json:"requests"` // all requests of these nodes, those of a node in the order of creation
	Restarts int       `json:"restarts"` // of the watches meanwhile; times of events that they missed are too late
}

// file lets each kubelet send certificate requests; a kubelet sends its next one when all have sent theirs.
func (c *Control) file(ctx context.Context, command Command, kubelets []Kubelet) (any, error) {
	ctx, cancel := within(ctx, command.Seconds)
	defer cancel()
	restarts := c.restarts()
	for range command.Certificates {
		err := paced(ctx, command, len(kubelets), func(i int) error { return c.ask(ctx, kubelets[i].Name) })
		if err != nil {
			return nil, err
		}
	}
	c.awaitIssued(ctx, command.Names)
	requests := c.requests.Of(command.Names)
	return Requested{requests, c.restarts() - restarts}, nil
}

// ask sends one of the requests that were prepared when the kubelet was loaded.
func (c *Control) ask(ctx context.Context, node string) error {
	body, err := c.take(node)
	if err != nil {
		return err
	}
	begun := unix(time.Now())
	answer, err := c.api.sent(ctx, http.StatusCreated, http.MethodPost, requestsPath, node, jsonType, body)
	if err != nil {
		return err
	}
	name, err := createdName(answer)
	if err != nil {
		return err
	}
	c.requests.Sent(name, node, begun)
	return nil
}

// prepare creates certificate requests in advance, so that measurements exclude this work.
func (c *Control) prepare(kubelet Kubelet, count int) error {
	bodies := make([][]byte, count)
	for i := range bodies {
		var err error
		if bodies[i], err = signingRequest(kubelet.Name, kubelet.Addresses); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[kubelet.Name], c.prepared[kubelet.Name] = kubelet, bodies
	return nil
}

func (c *Control) take(node string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.prepared[node]
	if len(left) == 0 {
		return nil, fmt.Errorf("no request of %q was made beforehand, or all were sent", node)
	}
	c.prepared[node] = left[1:]
	return left[0], nil
}

// awaitIssued returns whether the newest request of each of these nodes got its certificate before the context ended.
func (c *Control) awaitIssued(ctx context.Context, names []string) bool {
	done := 0 // the number of leading names that are done
	return c.requests.WaitUntil(ctx, func() bool {
		done += c.requests.Issued(names[done:])
		return done == len(names)
	})
}

// deleteRequests deletes these nodes' requests as an admin; Kubernetes may have deleted some before. The watch may
// show another request meanwhile, so it repeats until there is none.
func (c *Control) deleteRequests(ctx context.Context, command Command) error {
	for {
		left := c.requests.Of(command.Names)
		if len(left) == 0 {
			return nil
		}
		err := paced(ctx, command, len(left), func(i int) error {
			return c.api.gone(ctx, requestsPath+"/"+left[i].Name)
		})
		if err != nil {
			return err
		}
		if !c.requests.WaitUntil(ctx, func() bool { return c.requests.Gone(left) }) {
			return ctx.Err()
		}
	}
}

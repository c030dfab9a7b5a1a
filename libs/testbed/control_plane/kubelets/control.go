package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

const makers = 4 // of requests for certificates at the same time

// Command is one line of stdin. The answer has the same id; commands run concurrently.
type Command struct {
	ID           int               `json:"id"`
	Do           string            `json:"do"`
	Kubelets     []Kubelet         `json:"kubelets"`
	Names        []string          `json:"names"`
	Texts        map[string]string `json:"texts"`
	Concurrency  int               `json:"concurrency"`   // the most at a time; 0: no limit
	PerSecond    float64           `json:"per_second"`    // the most started per second; 0: no limit
	OneAtATime   bool              `json:"one_at_a_time"` // the next node joins when the last one is untainted
	Untainted    bool              `json:"untainted"`     // wait until all are untainted, and have their certificate
	Served       bool              `json:"served"`        // with Untainted: wait until all have podCIDRs
	Certificates int               `json:"certificates"`  // the number of certificate requests per kubelet
	Seconds      float64           `json:"seconds"`       // how long to wait, or to send heartbeats
	EverySeconds float64           `json:"every_seconds"` // between two heartbeats of one node
}

// Answer is one line of stdout.
type Answer struct {
	ID     int    `json:"id"`
	Error  string `json:"error,omitempty"`
	Result any    `json:"result,omitempty"`
}

// Control executes commands.
type Control struct {
	api      *API
	nodes    *Nodes
	requests *Requests

	mu       sync.Mutex
	known    map[string]Kubelet
	prepared map[string][][]byte // certificate requests that are not sent yet
}

func newControl(api *API, nodes *Nodes, requests *Requests) *Control {
	return &Control{
		api: api, nodes: nodes, requests: requests, known: map[string]Kubelet{}, prepared: map[string][][]byte{},
	}
}

type carryOut func(context.Context, Command) (any, error)

// serve reports that it is ready. It returns without an error when stdin closes, even while commands run.
func serve(ctx context.Context, do carryOut, in io.Reader, out io.Writer) error {
	var writing sync.Mutex
	encoder := json.NewEncoder(out)
	say := func(answer Answer) error {
		writing.Lock()
		defer writing.Unlock()
		return encoder.Encode(answer)
	}
	if err := say(Answer{}); err != nil {
		return err
	}
	failed := make(chan error, 1)
	decoder := json.NewDecoder(bufio.NewReaderSize(in, 1<<20))
	for {
		var command Command
		if err := decoder.Decode(&command); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("unreadable command: %w", err)
		}
		go func() {
			answer := Answer{ID: command.ID}
			var err error
			if answer.Result, err = do(ctx, command); err != nil {
				answer.Error = err.Error()
			}
			if err := say(answer); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		}()
		select {
		case err := <-failed:
			return err
		default:
		}
	}
}

func (c *Control) carryOut(ctx context.Context, command Command) (any, error) {
	switch command.Do {
	case "load":
		return nil, paced(ctx, Command{Concurrency: makers}, len(command.Kubelets), func(i int) error {
			return c.prepare(command.Kubelets[i], command.Certificates)
		})
	case "join":
		return c.withKubelets(command.Names, func(kubelets []Kubelet) (any, error) {
			return c.join(ctx, command, kubelets)
		})
	case "file":
		return c.withKubelets(command.Names, func(kubelets []Kubelet) (any, error) {
			return c.file(ctx, command, kubelets)
		})
	case "beat":
		return c.withKubelets(command.Names, func(kubelets []Kubelet) (any, error) {
			return c.beat(ctx, command, kubelets)
		})
	case "delete":
		return c.withKubelets(command.Names, func(kubelets []Kubelet) (any, error) {
			return nil, c.delete(ctx, command, kubelets)
		})
	case "untainted":
		deadline, cancel := within(ctx, command.Seconds)
		defer cancel()
		return c.awaitUntainted(deadline, command.Names), nil
	case "expect":
		c.nodes.Expect(command.Texts)
		return nil, nil
	case "await":
		deadline, cancel := within(ctx, command.Seconds)
		defer cancel()
		c.nodes.WaitUntil(deadline, func() bool {
			return len(c.nodes.Shown(command.Texts)) == len(command.Texts)
		})
		return c.nodes.Shown(command.Texts), nil
	default:
		return nil, fmt.Errorf("there is no command %q", command.Do)
	}
}

func (c *Control) withKubelets(names []string, do func([]Kubelet) (any, error)) (any, error) {
	c.mu.Lock()
	kubelets := make([]Kubelet, 0, len(names))
	for _, name := range names {
		kubelet, known := c.known[name]
		if !known {
			c.mu.Unlock()
			return nil, fmt.Errorf("no kubelet %q was loaded", name)
		}
		kubelets = append(kubelets, kubelet)
	}
	c.mu.Unlock()
	return do(kubelets)
}

func within(ctx context.Context, seconds float64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Duration(seconds*float64(time.Second)))
}

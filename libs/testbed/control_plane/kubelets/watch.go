package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

const (
	taintKey       = "node.cloudprovider.kubernetes.io/uninitialized"
	lineBytes      = 1 << 16
	queued         = 1 << 16 // events read and not looked at; the API server ends the watch of a slow reader
	pauseAfterFail = 100 * time.Millisecond
)

var taintBytes = []byte(taintKey)

// Watch follows all Nodes. It reads as little as it can: on two cores the one who measures must cost nothing.
type Watch struct {
	api   *API
	nodes *Nodes
}

type node struct {
	Metadata struct {
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Taints []struct {
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

// List takes note of the nodes that are there, and returns the version to watch from.
func (w *Watch) List(ctx context.Context) (string, error) {
	status, text, err := w.api.do(ctx, http.MethodGet, nodesPath, "", jsonType, nil)
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", &Refused{"listing nodes", status, words(text)}
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []node `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return "", err
	}
	w.nodes.replace(list.Items, unix(time.Now()))
	return list.Metadata.ResourceVersion, nil
}

// Follow watches for ever. What it missed between two watches it takes from a list, with the time of the list.
func (w *Watch) Follow(ctx context.Context, version string) {
	for {
		err := w.follow(ctx, version)
		fmt.Fprintln(os.Stderr, "kubelets: the watch of nodes ended, listing again:", err)
		w.nodes.restarted()
		for {
			time.Sleep(pauseAfterFail)
			if version, err = w.List(ctx); err == nil {
				break
			}
			fmt.Fprintln(os.Stderr, "kubelets:", err)
		}
	}
}

func (w *Watch) follow(ctx context.Context, version string) error {
	url := w.api.server + nodesPath + "?watch=1&resourceVersion=" + version
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", jsonType)
	response, err := w.api.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("watching nodes: %s", response.Status)
	}
	lines := make(chan line, queued)
	var ended error
	go func() {
		defer close(lines)
		reader := bufio.NewReaderSize(response.Body, lineBytes)
		for {
			text, err := reader.ReadBytes('\n')
			if err != nil {
				ended = err
				return
			}
			lines <- line{text, unix(time.Now())}
		}
	}()
	for l := range lines {
		if err := w.nodes.hear(l.text, l.at); err != nil {
			return err
		}
	}
	return ended
}

// line is one watch event and when it came.
type line struct {
	text []byte
	at   float64
}

// hear takes one watch event. A node that still has the taint, or that nobody waits for, is not decoded as a whole.
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
	if !mayBeUntainted && s.expected == nil {
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

// take notes what is new of a node, and returns whether anything is.
func (s *seen) take(object *node, now float64) bool {
	news := false
	if s.untainted == 0 && !object.tainted() {
		s.untainted = now
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

// head finds the type and the name at the beginning of an event, where the API server writes them:
// {"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"
func head(line []byte) (kind, name string, ok bool) {
	const typeMark, nameMark = `{"type":"`, `"metadata":{"name":"`
	if !bytes.HasPrefix(line, []byte(typeMark)) {
		return "", "", false
	}
	rest := line[len(typeMark):]
	end := bytes.IndexByte(rest, '"')
	start := bytes.Index(rest, []byte(nameMark))
	if end < 0 || start < 0 {
		return "", "", false
	}
	kind = string(rest[:end])
	rest = rest[start+len(nameMark):]
	end = bytes.IndexByte(rest, '"')
	return kind, string(rest[:max(end, 0)]), end > 0 && kind != "ERROR"
}

func (n *Nodes) replace(items []node, now float64) {
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
}

func (n *Nodes) restarted() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.restarts++
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// News guards the state that a watch has shown, and wakes waiters at each change.
type News struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at each change that a waiter may need
	restarts int
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

func unix(moment time.Time) float64 {
	return float64(moment.UnixNano()) / 1e9
}

const (
	lineBytes      = 1 << 16
	queued         = 1 << 16 // events that are read but not handled yet; the API server ends the watch of a slow reader
	pauseAfterFail = 100 * time.Millisecond
)

// Watch follows a collection. It parses as little as possible, so that the observer takes little CPU.
type Watch struct {
	api   *API
	path  string
	query string // such as a field selector
	told  told
}

// told handles the events of a watch, each with the time of its arrival.
type told interface {
	hear(line []byte, now float64) error
	replace(items []byte, now float64) error
	restarted()
}

// List passes the present objects on, and returns the version to watch from.
func (w *Watch) List(ctx context.Context) (string, error) {
	status, text, err := w.api.do(ctx, http.MethodGet, w.path+"?"+w.query, "", jsonType, nil)
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", &Rejected{"listing " + w.path, status, words(text)}
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return "", err
	}
	return list.Metadata.ResourceVersion, w.told.replace(list.Items, unix(time.Now()))
}

// Begin lists, and then watches in the background.
func (w *Watch) Begin(ctx context.Context) error {
	version, err := w.List(ctx)
	if err == nil {
		go w.Follow(ctx, version)
	}
	return err
}

// Follow watches until the process ends. It continues a watch that the API server has ended, as it does under
// load. If that fails, it lists again; events that it missed get the time of the list.
func (w *Watch) Follow(ctx context.Context, version string) {
	for {
		before := version
		err := w.follow(ctx, &version)
		if errors.Is(err, io.EOF) && version != before {
			fmt.Fprintf(os.Stderr, "kubelets: the watch of %s ended, going on at %s\n", w.path, version)
			continue
		}
		fmt.Fprintf(os.Stderr, "kubelets: the watch of %s ended, listing again: %v\n", w.path, err)
		w.told.restarted()
		for {
			time.Sleep(pauseAfterFail)
			if version, err = w.List(ctx); err == nil {
				break
			}
			fmt.Fprintln(os.Stderr, "kubelets:", err)
		}
	}
}

func (w *Watch) follow(ctx context.Context, version *string) error {
	url := w.api.server + w.path + "?watch=1&resourceVersion=" + *version + "&" + w.query
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
		return fmt.Errorf("watching %s: %s", w.path, response.Status)
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
		if err := w.told.hear(l.text, l.at); err != nil {
			return err
		}
		if at := versionOf(l.text); at != "" {
			*version = at
		}
	}
	return ended
}

// line is one watch event with the time of its arrival.
type line struct {
	text []byte
	at   float64
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

// versionOf returns the resourceVersion of the object in an event, which precedes any text that a user can set.
func versionOf(line []byte) string {
	const mark = `"resourceVersion":"`
	start := bytes.Index(line, []byte(mark))
	if start < 0 {
		return ""
	}
	rest := line[start+len(mark):]
	return string(rest[:max(bytes.IndexByte(rest, '"'), 0)])
}

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
	"time"
)

const (
	lineBytes      = 1 << 16
	queued         = 1 << 16 // events read and not looked at; the API server ends the watch of a slow reader
	pauseAfterFail = 100 * time.Millisecond
)

// Watch follows a collection. It reads as little as it can: on two cores the one who measures must cost nothing.
type Watch struct {
	api   *API
	path  string
	query string // such as a field selector
	told  told
}

// told is whoever takes note of what a watch shows, each with the time at which it came.
type told interface {
	hear(line []byte, now float64) error
	replace(items []byte, now float64) error
	restarted()
}

// List takes note of what is there, and returns the version to watch from.
func (w *Watch) List(ctx context.Context) (string, error) {
	status, text, err := w.api.do(ctx, http.MethodGet, w.path+"?"+w.query, "", jsonType, nil)
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", &Refused{"listing " + w.path, status, words(text)}
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

// Begin lists, and follows from then on.
func (w *Watch) Begin(ctx context.Context) error {
	version, err := w.List(ctx)
	if err == nil {
		go w.Follow(ctx, version)
	}
	return err
}

// Follow watches for ever. A watch that the API server ends, as it does with many when it has much to tell at once,
// goes on where it was; one that cannot begins with a list, and what it missed bears the time of that.
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

// line is one watch event and when it came.
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

// versionOf is the resourceVersion of the object in an event, which stands before anything that somebody chose.
func versionOf(line []byte) string {
	const mark = `"resourceVersion":"`
	start := bytes.Index(line, []byte(mark))
	if start < 0 {
		return ""
	}
	rest := line[start+len(mark):]
	return string(rest[:max(bytes.IndexByte(rest, '"'), 0)])
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
)

// The approval of every request. A new request has no conditions.
var approval = []byte(`[{"op":"add","path":"/status/conditions","value":[` +
	`{"type":"Approved","status":"True","reason":"ApproveEverything","message":"without a look"}]}]`)

const patchType = "application/json-patch+json"

// Approver approves every pending request as soon as the watch shows it, with one API request and no check.
// It is the baseline for the cost of decisions.
type Approver struct {
	api     *API
	pending chan string
	seen    map[string]bool // a list after a restart of the watch shows requests again; each is approved once
}

func newApprover(ctx context.Context, api *API, workers int) *Approver {
	a := &Approver{api: api, pending: make(chan string, queued), seen: map[string]bool{}}
	for range workers {
		go a.work(ctx)
	}
	return a
}

func (a *Approver) carryOut(_ context.Context, command Command) (any, error) {
	return nil, fmt.Errorf("there is no command %q", command.Do)
}

func (a *Approver) work(ctx context.Context) {
	for name := range a.pending {
		path := requestsPath + "/" + name + "/approval"
		if err := a.api.must(ctx, http.StatusOK, http.MethodPatch, path, "", patchType, approval); err != nil {
			fmt.Fprintln(os.Stderr, "approve:", err)
		}
	}
}

func (a *Approver) hear(line []byte, _ float64) error {
	kind, name, ok := head(line)
	if !ok {
		return fmt.Errorf("unreadable or failed: %.200s", line)
	}
	if kind == "ADDED" && !bytes.Contains(line, approvedBytes) && !bytes.Contains(line, deniedBytes) {
		a.take(name)
	}
	return nil
}

func (a *Approver) take(name string) {
	if !a.seen[name] {
		a.seen[name] = true
		a.pending <- name
	}
}

func (a *Approver) replace(text []byte, _ float64) error {
	items, err := requestsIn(text)
	if err != nil {
		return err
	}
	for i := range items {
		if !items[i].has("Approved") && !items[i].has("Denied") {
			a.take(items[i].Metadata.Name)
		}
	}
	return nil
}

func (a *Approver) restarted() {}

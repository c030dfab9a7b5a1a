// Package peer has what the clients of clouds' own Go modules share.
package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Run reads one JSON query from stdin, and writes the report about it to stdout.
func Run[Query, Report any](ask func(context.Context, Query) (Report, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var query Query
	err := json.NewDecoder(os.Stdin).Decode(&query)
	var report Report
	if err == nil {
		report, err = ask(ctx, query)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

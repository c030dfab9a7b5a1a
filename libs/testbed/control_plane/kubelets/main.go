// Kubelets for measurements: any number of them in one process, which also watches the state of each node.
// The objects that kubelets write come as complete JSON, so this program does not know the schema of a Node and
// needs only the standard library. It takes commands as JSON lines on stdin, answers on stdout, and ends when
// stdin closes. With -approve it is no kubelet: it approves every request for a serving certificate.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
)

func main() {
	server := flag.String("server", "", "URL of the API server")
	authority := flag.String("ca", "", "file with the API server's CA")
	certificate := flag.String("cert", "", "client certificate of an admin, who may impersonate nodes")
	key := flag.String("key", "", "its private key")
	approvers := flag.Int("approve", 0, "approve every request for a serving certificate, so many at a time")
	flag.Parse()

	if err := run(*server, *authority, *certificate, *key, *approvers); err != nil {
		fmt.Fprintln(os.Stderr, "kubelets:", err)
		os.Exit(1)
	}
}

func run(server, authority, certificate, key string, approvers int) error {
	credentials, err := loadCredentials(authority, certificate, key)
	if err != nil {
		return err
	}
	ctx := context.Background()
	connected := func() *API { return newAPI(server, credentials) }
	begin := beginKubelets
	if approvers > 0 {
		begin = func(ctx context.Context, connected func() *API) (carryOut, error) {
			return beginApproving(ctx, connected, approvers)
		}
	}
	do, err := begin(ctx, connected)
	if err != nil {
		return err
	}
	return serve(ctx, do, os.Stdin, os.Stdout)
}

// Each watch has its own connection: its events must not queue behind the writes of kubelets.
func beginKubelets(ctx context.Context, connected func() *API) (carryOut, error) {
	nodes, requests := newNodes(), newRequests()
	if err := (&Watch{api: connected(), path: nodesPath, told: nodes}).Begin(ctx); err != nil {
		return nil, err
	}
	watch := &Watch{api: connected(), path: requestsPath, query: requestsQuery, told: requests}
	if err := watch.Begin(ctx); err != nil {
		return nil, err
	}
	return newControl(connected(), nodes, requests).carryOut, nil
}

func beginApproving(ctx context.Context, connected func() *API, workers int) (carryOut, error) {
	approver := newApprover(ctx, connected(), workers)
	watch := &Watch{api: connected(), path: requestsPath, query: requestsQuery, told: approver}
	return approver.carryOut, watch.Begin(ctx)
}

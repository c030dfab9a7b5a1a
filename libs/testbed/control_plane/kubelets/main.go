// Kubelets for measurements: any number of them in one process, which also sees how far each node has come.
// What a kubelet writes comes in as ready-made JSON, so this program knows nothing of the shape of a Node; the
// standard library is all it needs. It takes commands as JSON lines on stdin, answers on stdout, and ends when
// stdin closes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
)

func main() {
	server := flag.String("server", "", "URL of the API server")
	authority := flag.String("ca", "", "file with the API server's authority")
	certificate := flag.String("cert", "", "client certificate of an admin, who may impersonate nodes")
	key := flag.String("key", "", "its private key")
	flag.Parse()

	if err := run(*server, *authority, *certificate, *key); err != nil {
		fmt.Fprintln(os.Stderr, "kubelets:", err)
		os.Exit(1)
	}
}

func run(server, authority, certificate, key string) error {
	credentials, err := loadCredentials(authority, certificate, key)
	if err != nil {
		return err
	}
	// The watch has a connection of its own: what it tells must not queue behind what kubelets write.
	nodes := newNodes()
	watch := &Watch{api: newAPI(server, credentials), nodes: nodes}
	ctx := context.Background()
	version, err := watch.List(ctx)
	if err != nil {
		return err
	}
	go watch.Follow(ctx, version)
	control := &Control{api: newAPI(server, credentials), nodes: nodes, known: map[string]Kubelet{}}
	return control.Serve(ctx, os.Stdin, os.Stdout)
}

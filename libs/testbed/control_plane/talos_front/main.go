// Talos machines behind Talos's own API server: each machine has an apid of its own, which is not modified, and a
// server with Talos's own roles and resource policy in place of machined. The module path lies below Talos's, because
// only such a module may import apid. The process runs in a network namespace, where it gives each machine its
// addresses. It takes the commands of ../machines, and four more, which concern the apid of a machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"talos-ccm/testbed/machines/fleet"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == apidCommand {
		runAPID(os.Args[2])
		return
	}
	certificates := flag.String("pki", "", "directory with ca.crt and ca.key, absolute; read for each connection to an endpoint")
	sockets := flag.String("listen-fds", "", "file descriptors of the endpoints' listening sockets, separated by commas")
	flag.Parse()
	if err := serve(context.Background(), *certificates, strings.Split(*sockets, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "talos_front:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, certificates string, sockets []string) error {
	if err := openNetwork(); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	cluster, err := NewCluster(ctx, NewAuthority(certificates))
	if err != nil {
		return err
	}
	endpoints, err := openEndpoints(sockets, cluster.enter)
	if err != nil {
		return err
	}
	control := &fleet.Control{
		Machines: cluster, Endpoints: endpoints,
		Further: map[string]func(context.Context, string) error{
			"renew": cluster.Renew, "restart": cluster.Restart, "misname": cluster.Misname, "enter": cluster.Enter,
		},
	}
	return control.Serve(ctx, os.Stdin, os.Stdout)
}

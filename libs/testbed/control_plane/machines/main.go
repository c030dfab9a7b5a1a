// Talos machines for tests: COSI's own state server with Talos's own resource types, for thousands of machines in
// one process. A call selects its machine by the `node` metadata header, as in apid. The process takes commands as
// JSON lines on stdin, answers on stdout, and ends when stdin closes.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const maxMessageBytes = 32 << 20 // as in apid and machined

func main() {
	certificates := flag.String("pki", "", "directory with ca.crt, server.crt and server.key; read for each handshake")
	ports := flag.String("listen", "0", "ports of the endpoints on the loopback, separated by commas; 0 selects a free one")
	flag.Parse()

	fleet := NewFleet()
	server := newServer(fleet, *certificates)
	endpoints, err := OpenEndpoints(server, strings.Split(*ports, ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, "machines:", err)
		os.Exit(1)
	}
	ready, err := json.Marshal(map[string]any{"id": 0, "ready": endpoints.Ports()})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(ready))
	control := &Control{fleet: fleet, endpoints: endpoints}
	if err := control.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "machines:", err)
		os.Exit(1)
	}
}

func newServer(fleet *Fleet, certificates string) *grpc.Server {
	// The windows of apid. Keepalive enforcement stays at grpc-go's default, as in Talos: a client that pings often gets GOAWAY.
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(tlsConfig(certificates))),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.InitialWindowSize(65535*32),
		grpc.InitialConnWindowSize(65535*16),
		grpc.UnaryInterceptor(recoverUnary),
		grpc.StreamInterceptor(recoverStream),
	)
	router := &Router{fleet: fleet}
	v1alpha1.RegisterStateServer(server, router)
	machine.RegisterMachineServiceServer(server, &MachineService{router: router})
	return server
}

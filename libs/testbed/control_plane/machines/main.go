// Talos machines for tests: COSI's own state server with Talos's own resource types, for thousands of machines in
// one process. A call selects its machine by the `node` metadata header, as in apid. The process takes commands as
// JSON lines on stdin, answers on stdout, and ends when stdin closes.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"talos-ccm/testbed/machines/fleet"
)

const maxMessageBytes = 32 << 20 // as in apid and machined

func main() {
	certificates := flag.String("pki", "", "directory with ca.crt, server.crt and server.key; read for each handshake")
	ports := flag.String("listen", "", "ports of the endpoints on the loopback, separated by commas")
	flag.Parse()

	machines := fleet.NewFleet(newMachine)
	server := newServer(machines, *certificates)
	endpoints, err := openEndpoints(server, strings.Split(*ports, ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, "machines:", err)
		os.Exit(1)
	}
	control := &fleet.Control{Machines: machines, Endpoints: endpoints}
	if err := control.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "machines:", err)
		os.Exit(1)
	}
}

func newServer(machines *fleet.Fleet, certificates string) *grpc.Server {
	// The windows of apid. Keepalive enforcement stays at grpc-go's default, as in Talos: a client that pings often gets GOAWAY.
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(tlsConfig(certificates))),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.InitialWindowSize(65535*32),
		grpc.InitialConnWindowSize(65535*16),
		grpc.UnaryInterceptor(recoverUnary),
		grpc.StreamInterceptor(recoverStream),
	)
	router := &Router{fleet: machines}
	fleet.Register(server, router.Visit)
	return server
}

// openEndpoints listens on ports of the loopback.
func openEndpoints(server *grpc.Server, ports []string) (fleet.Endpoints, error) {
	var endpoints fleet.Endpoints
	for _, port := range ports {
		listen := func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:"+port) }
		door := fleet.NewDoor(listen, server.Serve)
		if err := door.Open(); err != nil {
			return nil, err
		}
		endpoints = append(endpoints, door)
	}
	return endpoints, nil
}

func newMachine(string) (*fleet.Machine, error) {
	return fleet.NewMachine(fleet.NewState(), access), nil
}

package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"

	"google.golang.org/grpc"
)

// Endpoints are listeners for the same fleet, like several control plane machines; each can be cut and restored.
type Endpoints struct {
	server *grpc.Server
	doors  []*door
}

type door struct {
	port int

	mu          sync.Mutex
	listener    net.Listener
	connections map[net.Conn]struct{}
}

// OpenEndpoints listens on ports of the loopback.
func OpenEndpoints(server *grpc.Server, ports []string) (*Endpoints, error) {
	endpoints := &Endpoints{server: server}
	for _, text := range ports {
		port, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		d := &door{port: port, connections: map[net.Conn]struct{}{}}
		if err := d.open(server); err != nil {
			return nil, err
		}
		endpoints.doors = append(endpoints.doors, d)
	}
	return endpoints, nil
}

// Ports returns the ports of the endpoints in order.
func (e *Endpoints) Ports() []int {
	ports := make([]int, 0, len(e.doors))
	for _, d := range e.doors {
		ports = append(ports, d.port)
	}
	return ports
}

// Cut closes an endpoint and every connection through it.
func (e *Endpoints) Cut(index int) error {
	d, err := e.door(index)
	if err != nil {
		return err
	}
	return d.close()
}

// Restore opens a cut endpoint on the same port.
func (e *Endpoints) Restore(index int) error {
	d, err := e.door(index)
	if err != nil {
		return err
	}
	return d.open(e.server)
}

func (e *Endpoints) door(index int) (*door, error) {
	if index < 0 || index >= len(e.doors) {
		return nil, fmt.Errorf("there is no endpoint %d", index)
	}
	return e.doors[index], nil
}

func (d *door) open(server *grpc.Server) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", d.port))
	if err != nil {
		return err
	}
	d.port = listener.Addr().(*net.TCPAddr).Port
	d.listener = listener
	go func() {
		// Serve returns an error when the endpoint is cut; that is no failure.
		if err := server.Serve(&watched{listener, d}); err != nil && d.holds(listener) {
			fmt.Fprintln(os.Stderr, "machines: endpoint failed:", err)
		}
	}()
	return nil
}

func (d *door) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener == nil {
		return nil
	}
	listener := d.listener
	d.listener = nil
	err := listener.Close()
	for connection := range d.connections {
		// A reset instead of a normal close, as if the control plane machine had vanished.
		if tcp, ok := connection.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // fails only on a connection that is closed already
		}
		_ = connection.Close() // likewise
	}
	clear(d.connections)
	return err
}

func (d *door) holds(listener net.Listener) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listener == listener
}

// watched is a listener that records its connections in its door.
type watched struct {
	net.Listener
	door *door
}

func (w *watched) Accept() (net.Conn, error) {
	connection, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w.door.mu.Lock()
	defer w.door.mu.Unlock()
	if w.door.listener != w.Listener {
		_ = connection.Close() // cut between accept and here
		return nil, net.ErrClosed
	}
	w.door.connections[connection] = struct{}{}
	return &known{connection, w.door}, nil
}

type known struct {
	net.Conn
	door *door
}

func (k *known) Close() error {
	k.door.mu.Lock()
	delete(k.door.connections, k.Conn)
	k.door.mu.Unlock()
	return k.Conn.Close()
}

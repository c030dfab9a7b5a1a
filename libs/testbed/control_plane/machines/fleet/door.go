package fleet

import (
	"fmt"
	"net"
	"os"
	"sync"
)

// Door is a listener that can be closed with every connection through it, and opened again.
type Door struct {
	listen func() (net.Listener, error)
	serve  func(net.Listener) error

	mu          sync.Mutex
	listener    net.Listener
	connections map[net.Conn]struct{}
}

// NewDoor returns a closed door; serve accepts connections until the listener is closed.
func NewDoor(listen func() (net.Listener, error), serve func(net.Listener) error) *Door {
	return &Door{listen: listen, serve: serve, connections: map[net.Conn]struct{}{}}
}

// Open opens the door, unless it is open.
func (d *Door) Open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil {
		return nil
	}
	listener, err := d.listen()
	if err != nil {
		return err
	}
	d.listener = listener
	go func() {
		// serve returns an error when the door is closed; that is no failure.
		if err := d.serve(&watched{listener, d}); err != nil && d.holds(listener) {
			fmt.Fprintf(os.Stderr, "listener %s failed: %s\n", listener.Addr(), err)
		}
	}()
	return nil
}

// Close closes the listener and resets every connection, as if the machine behind it had vanished.
func (d *Door) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener == nil {
		return nil
	}
	listener := d.listener
	d.listener = nil
	err := listener.Close()
	for connection := range d.connections {
		if tcp, ok := connection.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // fails only on a connection that is closed already
		}
		_ = connection.Close() // likewise
	}
	clear(d.connections)
	return err
}

func (d *Door) holds(listener net.Listener) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listener == listener
}

// watched is a listener that records its connections in its door.
type watched struct {
	net.Listener
	door *Door
}

func (w *watched) Accept() (net.Conn, error) {
	connection, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w.door.mu.Lock()
	defer w.door.mu.Unlock()
	if w.door.listener != w.Listener {
		_ = connection.Close() // closed between accept and here
		return nil, net.ErrClosed
	}
	w.door.connections[connection] = struct{}{}
	return &known{connection, w.door}, nil
}

type known struct {
	net.Conn
	door *Door
}

func (k *known) Close() error {
	k.door.mu.Lock()
	delete(k.door.connections, k.Conn)
	k.door.mu.Unlock()
	return k.Conn.Close()
}

// Endpoints are the doors that clients connect to, like several control plane machines.
type Endpoints []*Door

// Cut closes an endpoint and every connection through it.
func (e Endpoints) Cut(index int) error {
	return e.at(index, (*Door).Close)
}

// Restore opens a cut endpoint on the same port.
func (e Endpoints) Restore(index int) error {
	return e.at(index, (*Door).Open)
}

func (e Endpoints) at(index int, do func(*Door) error) error {
	if index < 0 || index >= len(e) {
		return fmt.Errorf("there is no endpoint %d", index)
	}
	return do(e[index])
}

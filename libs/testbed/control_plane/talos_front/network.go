package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"
	"talos-ccm/testbed/machines/fleet"
)

// openNetwork makes every address an address of this namespace: one without a listener refuses connections at once.
func openNetwork() error {
	connection, err := rtnetlink.Dial(nil)
	if err != nil {
		return err
	}
	defer connection.Close() //nolint:errcheck // the process has its routes
	loopback, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	links, index := connection.Link, uint32(loopback.Index)
	if err := links.Set(&rtnetlink.LinkMessage{Index: index, Flags: unix.IFF_UP, Change: unix.IFF_UP}); err != nil {
		return fmt.Errorf("cannot set the loopback up: %w", err)
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		everywhere := &rtnetlink.RouteMessage{
			Family: family, Table: unix.RT_TABLE_LOCAL, Protocol: unix.RTPROT_STATIC, Type: unix.RTN_LOCAL,
			Scope: unix.RT_SCOPE_HOST, Attributes: rtnetlink.RouteAttributes{OutIface: index},
		}
		if err := connection.Route.Replace(everywhere); err != nil {
			return fmt.Errorf("cannot route every address to the loopback: %w", err)
		}
	}
	return nil
}

// listenAt listens at an address of a machine, which no interface has.
func listenAt(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(network, _ string, socket syscall.RawConn) error {
		level, option := unix.IPPROTO_IP, unix.IP_FREEBIND
		if network == "tcp6" {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
		}
		var failed error
		err := socket.Control(func(descriptor uintptr) {
			failed = unix.SetsockoptInt(int(descriptor), level, option, 1)
		})
		return errors.Join(err, failed)
	}}
	return config.Listen(context.Background(), "tcp", address)
}

// openEndpoints accepts connections on sockets of the namespace that the caller is in.
func openEndpoints(descriptors []string, enter func() (string, error)) (fleet.Endpoints, error) {
	var endpoints fleet.Endpoints
	for _, text := range descriptors {
		descriptor, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		syscall.CloseOnExec(descriptor)
		socket := inherited{descriptor, os.NewFile(uintptr(descriptor), "endpoint")}
		door := fleet.NewDoor(socket.listen, forwarder(enter))
		if err := door.Open(); err != nil {
			return nil, err
		}
		endpoints = append(endpoints, door)
	}
	return endpoints, nil
}

// inherited is a bound socket. This process cannot bind another one to its port, so it is never closed.
type inherited struct {
	descriptor int
	file       *os.File
}

func (i inherited) listen() (net.Listener, error) {
	if err := unix.Listen(i.descriptor, unix.SOMAXCONN); err != nil {
		return nil, err
	}
	listener, err := net.FileListener(i.file)
	return deaf{listener, i.descriptor}, err
}

// deaf is a listener whose Close makes the socket refuse connections, although other descriptors of it are open.
type deaf struct {
	net.Listener
	descriptor int
}

func (d deaf) Close() error {
	return errors.Join(d.Listener.Close(), unix.Shutdown(d.descriptor, unix.SHUT_RD))
}

// forwarder returns a server that forwards each connection, as bytes, to the address that target returns.
func forwarder(target func() (string, error)) func(net.Listener) error {
	return func(listener net.Listener) error {
		for {
			client, err := listener.Accept()
			if err != nil {
				return err
			}
			go func() {
				if err := forward(client, target); err != nil {
					fmt.Fprintln(os.Stderr, "talos_front:", err)
				}
			}()
		}
	}
}

func forward(client net.Conn, target func() (string, error)) error {
	defer client.Close() //nolint:errcheck // fails only on a connection that is closed already
	address, err := target()
	if err != nil {
		return err
	}
	server, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(server, client) // either end may reset the connection
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
	return nil
}

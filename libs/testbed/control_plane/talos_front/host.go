package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/siderolabs/talos/pkg/grpc/factory"
	"github.com/siderolabs/talos/pkg/grpc/middleware/auth/unix"
	"github.com/siderolabs/talos/pkg/grpc/middleware/authz"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"talos-ccm/testbed/machines/fleet"
)

const apidService = "apid"

var loopbackNames = []string{"127.0.0.1", "localhost"} // the endpoints' names

// Host runs one machine: its apid, and the two servers that apid connects to.
type Host struct {
	directory string // the root of apid, relative: a path of a socket is at most 108 bytes long
	address   string // at which apid listens
	authority *Authority
	resources state.State
	servers   []*grpc.Server

	names        []string // in the certificate
	controlPlane bool
	apid         *process
}

// NewHost starts the servers of a machine, not its apid.
func NewHost(ctx context.Context, directory, address string, authority *Authority, core state.CoreState, visit fleet.Select) (*Host, error) {
	resources := state.WrapCore(core)
	h := &Host{directory: directory, address: address, authority: authority, resources: resources}
	config := runtime.NewAPIServiceConfig()
	config.TypedSpec().ListenAddress = address
	if err := resources.Create(ctx, config); err != nil {
		return nil, err
	}
	if err := h.listen(constants.APIRuntimeSocketPath, h.newRuntimeServer()); err != nil {
		return nil, err
	}
	return h, h.listen(constants.MachineSocketPath, h.newMachineServer(visit))
}

// newRuntimeServer is the server from which apid reads its configuration, as in Talos.
func (h *Host) newRuntimeServer() *grpc.Server {
	caller := &unix.Authorizer{Resources: h.resources, AllowedServices: []unix.AllowedService{{Pattern: apidService}}}
	s := grpc.NewServer(
		grpc.Creds(unix.NewServerCredentials()),
		grpc.ChainUnaryInterceptor(caller.UnaryInterceptor()),
		grpc.ChainStreamInterceptor(caller.StreamInterceptor()),
	)
	v1alpha1.RegisterStateServer(s, server.NewState(state.Filter(h.resources, readableByAPID)))
	return s
}

// newMachineServer takes the place of machined, with its interceptors in their order.
func (h *Host) newMachineServer(visit fleet.Select) *grpc.Server {
	injector := &authz.Injector{Mode: authz.MetadataOnly}
	caller := &unix.Authorizer{
		Resources: h.resources, AllowedServices: []unix.AllowedService{{Pattern: apidService, AllowedRoles: role.All}},
	}
	authorizer := &authz.Authorizer{Rules: roles, FallbackRoles: role.MakeSet(role.Admin)}
	return factory.NewServer(
		registered(visit),
		factory.ServerOptions(grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize), grpc.Creds(unix.NewServerCredentials())),
		factory.WithUnaryInterceptor(injector.UnaryInterceptor()),
		factory.WithStreamInterceptor(injector.StreamInterceptor()),
		factory.WithUnaryInterceptor(caller.UnaryInterceptor()),
		factory.WithStreamInterceptor(caller.StreamInterceptor()),
		factory.WithUnaryInterceptor(authorizer.UnaryInterceptor()),
		factory.WithStreamInterceptor(authorizer.StreamInterceptor()),
	)
}

type registered fleet.Select

func (r registered) Register(s *grpc.Server) { fleet.Register(s, fleet.Select(r)) }

func (h *Host) listen(path string, s *grpc.Server) error {
	socket := filepath.Join(h.directory, path)
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	h.servers = append(h.servers, s)
	go func() {
		if err := s.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			fmt.Fprintf(os.Stderr, "talos_front: %s: %s\n", socket, err)
		}
	}()
	return nil
}

// Configure writes what apid needs from the machine's facts: addresses, and a certificate for them.
func (h *Host) Configure(ctx context.Context, facts fleet.Facts) error {
	names := slices.Concat(loopbackNames, facts.ReachableAt)
	if facts.Hostname != "" {
		names = append(names, facts.Hostname)
	}
	if slices.Equal(names, h.names) && facts.ControlPlane == h.controlPlane {
		return nil
	}
	h.names, h.controlPlane = names, facts.ControlPlane
	var addresses []netip.Prefix
	for _, text := range facts.ReachableAt {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		addresses = append(addresses, netip.PrefixFrom(address, address.BitLen()))
	}
	current := network.NewNodeAddress(network.NamespaceName, network.NodeAddressCurrentID)
	if err := safe.StateModify(ctx, h.resources, current, func(r *network.NodeAddress) error {
		r.TypedSpec().Addresses = addresses
		return nil
	}); err != nil {
		return err
	}
	return h.Renew(ctx)
}

// Renew replaces the certificates of apid, as Talos does every 12 hours, and waits until apid uses them.
func (h *Host) Renew(ctx context.Context) error {
	issued, err := h.authority.issue(h.names, h.controlPlane)
	if err != nil {
		return err
	}
	if err := safe.StateModify(ctx, h.resources, secrets.NewAPI(), func(r *secrets.API) error {
		*r.TypedSpec() = *issued
		return nil
	}); err != nil {
		return err
	}
	if h.apid == nil {
		return nil
	}
	return awaitServed(h.address, issued.Server, h.apid.ended)
}

// Start starts apid, unless it runs, and waits until it serves.
func (h *Host) Start(ctx context.Context) error {
	if h.apid != nil {
		return nil
	}
	started, err := startAPID(h.directory)
	if err != nil {
		return err
	}
	h.apid = started
	if err := safe.StateModify(ctx, h.resources, runtime.NewServicePID(apidService), func(r *runtime.ServicePID) error {
		r.TypedSpec().PID = started.pid()
		return nil
	}); err != nil {
		return err
	}
	certificates, err := safe.StateGetByID[*secrets.API](ctx, h.resources, secrets.APIID)
	if err != nil {
		return err
	}
	if err := awaitServed(h.address, certificates.TypedSpec().Server, started.ended); err != nil {
		log, _ := os.ReadFile(filepath.Join(h.directory, "apid.log")) // it may not exist
		return fmt.Errorf("%w\n%s", err, log)
	}
	return nil
}

// Kill ends apid as a crash does.
func (h *Host) Kill() {
	if h.apid != nil {
		h.apid.kill()
		h.apid = nil
	}
}

// Close ends apid and the servers.
func (h *Host) Close() {
	h.Kill()
	for _, s := range h.servers {
		s.Stop()
	}
}

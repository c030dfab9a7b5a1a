package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const apidPort = "50000"

// Router handles COSI calls as apid does: it selects the machine and forwards the call to its state server.
type Router struct {
	v1alpha1.UnimplementedStateServer

	fleet *Fleet
}

// Get returns one resource.
func (r *Router) Get(ctx context.Context, request *v1alpha1.GetRequest) (*v1alpha1.GetResponse, error) {
	visit, err := r.visit(ctx, "/cosi.resource.State/Get", Call{Method: "Get", Type: request.GetType()})
	if err != nil {
		return nil, err
	}
	defer visit.leave()
	response, err := visit.machine.server.Get(visit.ctx, request)
	return response, visit.outcome(err)
}

// List streams the resources of a type.
func (r *Router) List(request *v1alpha1.ListRequest, stream v1alpha1.State_ListServer) error {
	visit, err := r.visit(stream.Context(), "/cosi.resource.State/List", Call{Method: "List", Type: request.GetType()})
	if err != nil {
		return err
	}
	defer visit.leave()
	return visit.outcome(visit.machine.server.List(request, visit.list(stream)))
}

// Watch streams the changes of a type, or of one resource.
func (r *Router) Watch(request *v1alpha1.WatchRequest, stream v1alpha1.State_WatchServer) error {
	visit, err := r.visit(stream.Context(), "/cosi.resource.State/Watch", Call{Method: "Watch", Type: request.GetType()})
	if err != nil {
		return err
	}
	defer visit.leave()
	return visit.outcome(visit.machine.server.Watch(request, visit.watch(stream)))
}

// visit is one call at one machine. Its context also ends when the machine goes down.
type visit struct {
	machine *Machine
	address string
	ctx     context.Context
	up      context.Context
	muted   *mute
	leave   func()
}

// visit selects the machine, counts the call and applies the faults.
func (r *Router) visit(ctx context.Context, method string, call Call) (*visit, error) {
	m, address, err := r.route(ctx, method)
	call.Node = address
	r.fleet.Count(call)
	if err != nil {
		return nil, err
	}
	if err := authorize(ctx); err != nil {
		return nil, err
	}
	met := m.condition()
	if met.up.Err() != nil {
		return nil, refused(address)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(met.up, cancel)
	v := &visit{machine: m, address: address, ctx: ctx, up: met.up, muted: met.muted, leave: func() { stop(); cancel() }}
	if err := v.endure(met.faults, call.Type); err != nil {
		v.leave()
		return nil, v.outcome(err)
	}
	return v, nil
}

func (v *visit) endure(faults Faults, kind string) error {
	if faults.DelayMS > 0 {
		select {
		case <-time.After(time.Duration(faults.DelayMS) * time.Millisecond):
		case <-v.ctx.Done():
			return v.ctx.Err()
		}
	}
	if err := v.machine.wake(v.ctx); err != nil {
		return err
	}
	if faults.PermissionDenied {
		return notAuthorized()
	}
	return v.machine.answers(v.ctx, kind)
}

// outcome returns the error of the call as a client of apid sees it.
func (v *visit) outcome(err error) error {
	if v.up.Err() != nil {
		return status.Errorf(codes.Unavailable, "error reading from server: read tcp %s: read: connection reset by peer", dialled(v.address))
	}
	return err
}

// route selects the machine by the metadata headers, in the order of apid's director.
func (r *Router) route(ctx context.Context, method string) (*Machine, string, error) {
	headers, _ := metadata.FromIncomingContext(ctx)
	node := headers.Get("node")
	if len(node) > 1 {
		return nil, "", status.Error(codes.InvalidArgument, "node metadata must be single-valued")
	}
	if len(headers.Get("nodes")) > 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "one-2-many proxying is not supported for method %s", method)
	}
	if len(node) == 0 {
		if m := r.fleet.Local(); m != nil {
			return m, "", nil
		}
		return nil, "", status.Error(codes.Unavailable, "no control plane machine is up")
	}
	if _, _, err := net.SplitHostPort(node[0]); err == nil || node[0] == "" {
		return nil, node[0], status.Errorf(codes.Internal, "invalid target %q", node[0])
	}
	if m := r.fleet.At(node[0]); m != nil {
		return m, node[0], nil
	}
	return nil, node[0], refused(node[0])
}

func refused(address string) error {
	return status.Errorf(codes.Unavailable,
		"connection error: desc = \"transport: Error while dialing: dial tcp %s: connect: connection refused\"", dialled(address))
}

func dialled(address string) string {
	return net.JoinHostPort(address, apidPort)
}

func recoverUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	defer func() { err = recovered(recover(), err) }()
	return handler(ctx, request)
}

func recoverStream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() { err = recovered(recover(), err) }()
	return handler(server, stream)
}

// recovered converts a panic to an error as Talos does (pkg/grpc/factory): COSI's server panics on some malformed queries.
func recovered(panicked any, err error) error {
	if panicked == nil {
		return err
	}
	return status.Error(codes.Internal, fmt.Sprint(panicked))
}

// Create is forbidden to readers, like all writes.
func (r *Router) Create(context.Context, *v1alpha1.CreateRequest) (*v1alpha1.CreateResponse, error) {
	return nil, notAuthorized()
}

// Update is forbidden to readers.
func (r *Router) Update(context.Context, *v1alpha1.UpdateRequest) (*v1alpha1.UpdateResponse, error) {
	return nil, notAuthorized()
}

// Destroy is forbidden to readers.
func (r *Router) Destroy(context.Context, *v1alpha1.DestroyRequest) (*v1alpha1.DestroyResponse, error) {
	return nil, notAuthorized()
}

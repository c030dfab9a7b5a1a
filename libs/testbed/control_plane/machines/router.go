package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"talos-ccm/testbed/machines/fleet"
)

// Router selects the machine of a call as apid does.
type Router struct {
	fleet *fleet.Fleet
}

// Visit selects the machine, counts the call and begins it.
func (r *Router) Visit(ctx context.Context, method string, call fleet.Call) (*fleet.Visit, error) {
	m, address, err := r.route(ctx, method)
	call.Node = address
	r.fleet.Count(call)
	if err != nil {
		return nil, err
	}
	if err := authorize(ctx); err != nil {
		return nil, err
	}
	return m.Visit(ctx, address, call.Type)
}

// route selects the machine by the metadata headers, in the order of apid's director.
func (r *Router) route(ctx context.Context, method string) (*fleet.Machine, string, error) {
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
	return nil, node[0], fleet.Refused(node[0])
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

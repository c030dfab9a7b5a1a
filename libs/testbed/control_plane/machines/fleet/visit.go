package fleet

import (
	"context"
	"net"
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const apidPort = "50000"

// Visit is one call at one machine. Its context also ends when the machine goes down.
type Visit struct {
	machine *Machine
	address string // under which the caller knows the machine
	ctx     context.Context
	up      context.Context
	muted   *mute
	leave   func()
}

// Visit begins a call for a resource type, which is "" for Version, and applies the faults of the machine.
func (m *Machine) Visit(ctx context.Context, address, kind string) (*Visit, error) {
	met := m.condition()
	if met.up.Err() != nil {
		return nil, Refused(address)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(met.up, cancel)
	v := &Visit{machine: m, address: address, ctx: ctx, up: met.up, muted: met.muted, leave: func() { stop(); cancel() }}
	if err := v.endure(met.faults, kind); err != nil {
		v.leave()
		return nil, v.outcome(err)
	}
	return v, nil
}

func (v *Visit) get(request *v1alpha1.GetRequest) (*v1alpha1.GetResponse, error) {
	defer v.leave()
	response, err := v.machine.server.Get(v.ctx, request)
	return response, v.outcome(err)
}

func (v *Visit) list(request *v1alpha1.ListRequest, server v1alpha1.State_ListServer) error {
	defer v.leave()
	stream := &stream[*v1alpha1.ListResponse]{ServerStream: server, send: server.Send, visit: v}
	return v.outcome(v.machine.server.List(request, stream))
}

func (v *Visit) watch(request *v1alpha1.WatchRequest, server v1alpha1.State_WatchServer) error {
	defer v.leave()
	stream := &stream[*v1alpha1.WatchResponse]{server, server.Send, v, v.muted.deaf}
	return v.outcome(v.machine.server.Watch(request, stream))
}

func (v *Visit) version() *machine.Version {
	defer v.leave()
	return v.machine.version()
}

func (v *Visit) endure(faults Faults, kind string) error {
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
		return NotAuthorized()
	}
	return v.machine.answers(v.ctx, kind)
}

// outcome returns the error of the call as a client of apid sees it.
func (v *Visit) outcome(err error) error {
	if v.up.Err() != nil {
		return status.Errorf(codes.Unavailable, "error reading from server: read tcp %s: read: connection reset by peer", dialled(v.address))
	}
	return err
}

// Refused is the error of apid for a machine that does not listen.
func Refused(address string) error {
	return status.Errorf(codes.Unavailable,
		"connection error: desc = \"transport: Error while dialing: dial tcp %s: connect: connection refused\"", dialled(address))
}

// NotSupported is the error of machined for an unknown type.
func NotSupported(kind string) error {
	return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", kind)
}

// NotAuthorized is the error of machined for a role without the right.
func NotAuthorized() error {
	return status.Error(codes.PermissionDenied, "not authorized")
}

func dialled(address string) string {
	return net.JoinHostPort(address, apidPort)
}

// stream sends only while its machine is awake; it ends with the visit.
type stream[R any] struct {
	grpc.ServerStream
	send  func(R) error
	visit *Visit
	deaf  <-chan struct{} // closed when the stream is muted; nil if it cannot be
}

func (s *stream[R]) Context() context.Context { return s.visit.ctx }

func (s *stream[R]) Send(response R) error {
	if err := s.visit.machine.wake(s.visit.ctx); err != nil {
		return err
	}
	select {
	case <-s.deaf:
		return nil // the state server believes that it was sent
	default:
		return s.send(response)
	}
}

package main

import (
	"context"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"google.golang.org/grpc"
)

// stream sends only while its machine is awake; it ends with the visit.
type stream[R any] struct {
	grpc.ServerStream
	send  func(R) error
	visit *visit
	deaf  <-chan struct{} // closed when the stream is muted; nil if it cannot be
}

func (v *visit) list(server v1alpha1.State_ListServer) v1alpha1.State_ListServer {
	return &stream[*v1alpha1.ListResponse]{ServerStream: server, send: server.Send, visit: v}
}

func (v *visit) watch(server v1alpha1.State_WatchServer) v1alpha1.State_WatchServer {
	return &stream[*v1alpha1.WatchResponse]{server, server.Send, v, v.muted.deaf}
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

package main

import (
	"context"

	"github.com/cosi-project/runtime/api/v1alpha1"
)

// A stream sends only while its machine is awake; it ends with the visit.

type listStream struct {
	v1alpha1.State_ListServer
	visit *visit
}

func (v *visit) list(stream v1alpha1.State_ListServer) v1alpha1.State_ListServer {
	return &listStream{stream, v}
}

func (s *listStream) Context() context.Context { return s.visit.ctx }

func (s *listStream) Send(response *v1alpha1.ListResponse) error {
	if err := s.visit.machine.wake(s.visit.ctx); err != nil {
		return err
	}
	return s.State_ListServer.Send(response)
}

type watchStream struct {
	v1alpha1.State_WatchServer
	visit *visit
}

func (v *visit) watch(stream v1alpha1.State_WatchServer) v1alpha1.State_WatchServer {
	return &watchStream{stream, v}
}

func (s *watchStream) Context() context.Context { return s.visit.ctx }

func (s *watchStream) Send(response *v1alpha1.WatchResponse) error {
	if err := s.visit.machine.wake(s.visit.ctx); err != nil {
		return err
	}
	select {
	case <-s.visit.muted.deaf:
		return nil // the server believes that it was sent
	default:
		return s.State_WatchServer.Send(response)
	}
}

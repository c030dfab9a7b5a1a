package fleet

import (
	"context"

	"google.golang.org/grpc"
)

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

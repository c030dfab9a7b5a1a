package fleet

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/protobuf/server"
)

var errDown = errors.New("the machine went down")

// Faults are the faults of a machine; with the zero value it is healthy.
type Faults struct {
	Unavailable      bool     `json:"unavailable"`       // rejects connections; open streams break
	Hang             bool     `json:"hang"`              // accepts calls, and answers once it is healthy
	DelayMS          int      `json:"delay_ms"`          // answers late
	PermissionDenied bool     `json:"permission_denied"` // as if the client had no role
	NotFound         []string `json:"not_found"`         // types whose resources do not exist for now
	Unsupported      []string `json:"unsupported"`       // types that this Talos does not know
	Forbidden        []string `json:"forbidden"`         // types that the client's role may not read
	Slow             []string `json:"slow"`              // types whose queries are answered once the machine is healthy
}

// Machine is one Talos machine: its COSI state and its faults.
type Machine struct {
	state  state.CoreState
	server *server.State

	mu      sync.Mutex
	facts   Facts
	held    map[string]owned
	faults  Faults
	awake   chan struct{}   // closed unless the machine hangs
	up      context.Context // done while the machine is down
	goDown  context.CancelCauseFunc
	changed chan struct{} // closed when the faults are replaced
	muted   *mute         // of the watches that open from now on; replaced to mute the older ones
}

type mute struct{ deaf chan struct{} }

// NewState returns an empty state with the history of machined (v1alpha2_state.go).
func NewState() state.CoreState {
	return namespaced.NewState(func(namespace resource.Namespace) state.CoreState {
		return inmem.NewStateWithOptions(
			inmem.WithHistoryInitialCapacity(8), inmem.WithHistoryMaxCapacity(1024), inmem.WithHistoryGap(4),
		)(namespace)
	})
}

// NewMachine returns a healthy machine without any resource; the policy rules what calls may read of its state.
func NewMachine(core state.CoreState, policy state.FilteringRule) *Machine {
	m := &Machine{state: core, held: map[string]owned{}, awake: make(chan struct{}), changed: make(chan struct{}), muted: &mute{make(chan struct{})}}
	close(m.awake)
	m.up, m.goDown = context.WithCancelCause(context.Background())
	m.server = server.NewState(state.Filter(core, policy))
	return m
}

// Put replaces the facts. It writes only resources that differ, so only their watches fire.
func (m *Machine) Put(ctx context.Context, facts Facts) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := facts.Resources(); err != nil {
		return err
	}
	m.facts = facts
	return m.reconcile(ctx)
}

// SetFaults replaces all faults of the machine.
func (m *Machine) SetFaults(ctx context.Context, faults Faults) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if faults.Hang && !m.faults.Hang {
		m.awake = make(chan struct{})
	}
	if !faults.Hang && m.faults.Hang {
		close(m.awake)
	}
	if faults.Unavailable {
		m.goDown(errDown)
	} else if m.faults.Unavailable {
		m.up, m.goDown = context.WithCancelCause(context.Background())
	}
	m.faults = faults
	close(m.changed)
	m.changed = make(chan struct{})
	return m.reconcile(ctx)
}

// remove ends every call of the machine, which must not be used afterwards.
func (m *Machine) remove() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.goDown(errDown)
}

// muteWatches keeps the present watches open without any further event, like a dead connection.
func (m *Machine) muteWatches() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.muted.deaf)
	m.muted = &mute{make(chan struct{})}
}

func (m *Machine) reconcile(ctx context.Context) error {
	wanted, err := m.facts.Resources()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, r := range wanted {
		if slices.Contains(m.faults.NotFound, r.Metadata().Type()) {
			continue
		}
		keep[key(r)] = true
		if err := m.hold(ctx, r); err != nil {
			return err
		}
	}
	for name, r := range m.held {
		if keep[name] {
			continue
		}
		if err := m.state.Destroy(ctx, r.Metadata(), state.WithDestroyOwner(r.owner)); err != nil {
			return err
		}
		delete(m.held, name)
	}
	return nil
}

func (m *Machine) hold(ctx context.Context, r owned) error {
	present, exists := m.held[key(r)]
	if exists && reflect.DeepEqual(present.Spec(), r.Spec()) {
		return nil
	}
	m.held[key(r)] = r
	if !exists {
		return m.state.Create(ctx, r.Resource, state.WithCreateOwner(r.owner))
	}
	current, err := m.state.Get(ctx, r.Metadata())
	if err != nil {
		return err
	}
	next := r.DeepCopy()
	*next.Metadata() = *current.Metadata() // keep owner and times, and continue the version
	return m.state.Update(ctx, next, state.WithUpdateOwner(r.owner))
}

func key(r owned) string {
	metadata := r.Metadata()
	return metadata.Namespace() + "|" + metadata.Type() + "|" + metadata.ID()
}

// condition is the present state of the machine for a call.
type condition struct {
	faults Faults
	up     context.Context
	muted  *mute
}

func (m *Machine) condition() condition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return condition{m.faults, m.up, m.muted}
}

// wake waits until the machine does not hang, or the context ends.
func (m *Machine) wake(ctx context.Context) error {
	m.mu.Lock()
	awake := m.awake
	m.mu.Unlock()
	select {
	case <-awake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answers waits until the machine answers queries of a type; it returns the error if it does not allow them.
func (m *Machine) answers(ctx context.Context, kind string) error {
	for {
		m.mu.Lock()
		faults, changed := m.faults, m.changed
		m.mu.Unlock()
		switch {
		case slices.Contains(faults.Unsupported, kind):
			return NotSupported(kind)
		case slices.Contains(faults.Forbidden, kind):
			return NotAuthorized()
		case !slices.Contains(faults.Slow, kind):
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

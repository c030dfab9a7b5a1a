// Package fleet has simulated Talos machines: their facts as resources of Talos, their faults, and the commands
// that change both. A program selects the machine of a call, and who may read.
package fleet

import (
	"context"
	"fmt"
	"sync"
)

// Call is the key of a call count.
type Call struct {
	Node   string `json:"node"`
	Method string `json:"method"`
	Type   string `json:"type"`
}

// Fleet has all machines by ID and by network address.
type Fleet struct {
	newMachine func(id string) (*Machine, error)

	mu        sync.RWMutex
	machines  map[string]*Machine
	addresses map[string]*Machine
	order     []string

	counting sync.Mutex
	calls    map[Call]int
}

// NewFleet returns a fleet without machines; newMachine makes each of them.
func NewFleet(newMachine func(id string) (*Machine, error)) *Fleet {
	return &Fleet{newMachine: newMachine, machines: map[string]*Machine{}, addresses: map[string]*Machine{}, calls: map[Call]int{}}
}

// Put creates or replaces machines. They take over addresses of other machines, as on a real network.
func (f *Fleet) Put(ctx context.Context, machines ...Facts) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, facts := range machines {
		if err := f.put(ctx, facts); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) put(ctx context.Context, facts Facts) error {
	if facts.ID == "" {
		return fmt.Errorf("a machine needs an id")
	}
	m, known := f.machines[facts.ID]
	if !known {
		var err error
		if m, err = f.newMachine(facts.ID); err != nil {
			return err
		}
	}
	before := m.Facts().ReachableAt
	if err := m.Put(ctx, facts); err != nil {
		return err
	}
	if !known {
		f.machines[facts.ID] = m
		f.order = append(f.order, facts.ID)
	}
	f.forget(m, before)
	for _, address := range facts.ReachableAt {
		f.addresses[address] = m
	}
	return nil
}

// Delete deletes a machine; its addresses do not answer any more.
func (f *Fleet) Delete(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, known := f.machines[id]
	if !known {
		return fmt.Errorf("there is no machine %q", id)
	}
	m.remove()
	f.forget(m, m.Facts().ReachableAt)
	delete(f.machines, id)
	for i, other := range f.order {
		if other == id {
			f.order = append(f.order[:i:i], f.order[i+1:]...)
			break
		}
	}
	return nil
}

func (f *Fleet) forget(m *Machine, addresses []string) {
	for _, address := range addresses {
		if f.addresses[address] == m {
			delete(f.addresses, address)
		}
	}
}

// Machine returns the machine with this ID.
func (f *Fleet) Machine(id string) (*Machine, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if m, known := f.machines[id]; known {
		return m, nil
	}
	return nil, fmt.Errorf("there is no machine %q", id)
}

// At returns the machine at an address, or nil.
func (f *Fleet) At(address string) *Machine {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.addresses[address]
}

// Local returns the machine whose apid the client is connected to: the first control plane.
func (f *Fleet) Local() *Machine {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, id := range f.order {
		if m := f.machines[id]; m.Facts().ControlPlane {
			return m
		}
	}
	return nil
}

// SetFaults replaces all faults of a machine.
func (f *Fleet) SetFaults(ctx context.Context, id string, faults Faults) error {
	m, err := f.Machine(id)
	if err != nil {
		return err
	}
	return m.SetFaults(ctx, faults)
}

// MuteWatches mutes the present watches of a machine.
func (f *Fleet) MuteWatches(id string) error {
	m, err := f.Machine(id)
	if err != nil {
		return err
	}
	m.muteWatches()
	return nil
}

// Count counts one call.
func (f *Fleet) Count(call Call) {
	f.counting.Lock()
	defer f.counting.Unlock()
	f.calls[call]++
}

// Counted is the count of a call.
type Counted struct {
	Call
	Count int `json:"count"`
}

// Calls returns the counts since the start or the last reset.
func (f *Fleet) Calls() []Counted {
	f.counting.Lock()
	defer f.counting.Unlock()
	counted := make([]Counted, 0, len(f.calls))
	for call, count := range f.calls {
		counted = append(counted, Counted{call, count})
	}
	return counted
}

// ResetCalls resets the counts to zero.
func (f *Fleet) ResetCalls() {
	f.counting.Lock()
	defer f.counting.Unlock()
	clear(f.calls)
}

// Facts returns the present facts of the machine.
func (m *Machine) Facts() Facts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.facts
}

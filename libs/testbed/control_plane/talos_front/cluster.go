package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/internal/app/resources"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"
	"talos-ccm/testbed/machines/fleet"
)

// Gateway is the control plane machine that endpoints lead to while there is no other one. It only forwards calls.
const Gateway = "gateway"

// Cluster is a fleet whose machines have an apid each, and a door at each of their addresses.
type Cluster struct {
	*fleet.Fleet
	authority *Authority

	mu      sync.Mutex
	hosts   map[string]*Host // by machine; the gateway is no machine of the fleet
	created int
	doors   map[string]addressDoor // by address
	down    map[string]bool        // the machines that refuse connections
	entry   string                 // the machine that endpoints lead to; "" is the first of the control plane
	served  []byte                 // the CA of the present certificates
}

// addressDoor forwards connections to one address of a machine to its apid.
type addressDoor struct {
	*fleet.Door
	owner string
}

// NewCluster starts a cluster with the gateway alone.
func NewCluster(ctx context.Context, authority *Authority) (*Cluster, error) {
	c := &Cluster{authority: authority, hosts: map[string]*Host{}, doors: map[string]addressDoor{}, down: map[string]bool{}}
	c.Fleet = fleet.NewFleet(func(id string) (*fleet.Machine, error) { return c.newMachine(ctx, id) })
	var err error
	if c.served, err = authority.read(); err != nil {
		return nil, err
	}
	if _, err = c.newMachine(ctx, Gateway); err != nil {
		return nil, err
	}
	return c, c.run(ctx, fleet.Facts{ID: Gateway, ControlPlane: true})
}

func (c *Cluster) newMachine(ctx context.Context, id string) (*fleet.Machine, error) {
	core := fleet.NewState()
	if err := register(ctx, state.WrapCore(core)); err != nil {
		return nil, err
	}
	machine := fleet.NewMachine(core, resources.AccessPolicy(state.WrapCore(core)))
	visit := func(ctx context.Context, _ string, call fleet.Call) (*fleet.Visit, error) {
		call.Node = dialled(ctx, machine)
		c.Count(call)
		return machine.Visit(ctx, call.Node, call.Type)
	}
	c.created++
	directory := filepath.Join("apid", strconv.Itoa(c.created))
	address := fmt.Sprintf("127.%d.%d.1:%d", 64+c.created/256, c.created%256, constants.ApidPort)
	host, err := NewHost(ctx, directory, address, c.authority, core, visit)
	if err != nil {
		return nil, err
	}
	c.hosts[id] = host
	return machine, nil
}

// dialled returns the first address of the machine for a call that another apid has forwarded, otherwise "".
func dialled(ctx context.Context, machine *fleet.Machine) string {
	headers, _ := metadata.FromIncomingContext(ctx)
	if addresses := machine.Facts().ReachableAt; len(headers.Get("proxyfrom")) > 0 && len(addresses) > 0 {
		return addresses[0]
	}
	return ""
}

// enter returns the address of the apid behind the endpoints. A connection is the moment to notice a replaced CA.
func (c *Cluster) enter() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.followAuthority(context.Background()); err != nil {
		return "", err
	}
	id := c.entry
	if id == "" {
		id = Gateway
		if local := c.Local(); local != nil {
			id = local.Facts().ID
		}
	}
	if c.down[id] {
		return "", fmt.Errorf("the machine %q is down", id)
	}
	return c.hosts[id].address, nil
}

func (c *Cluster) followAuthority(ctx context.Context) error {
	present, err := c.authority.read()
	if err != nil || bytes.Equal(present, c.served) {
		return err
	}
	for _, host := range c.hosts {
		if err := host.Renew(ctx); err != nil {
			return err
		}
	}
	c.served = present
	return nil
}

// Put creates or replaces machines; it returns when all of them serve.
func (c *Cluster) Put(ctx context.Context, machines ...fleet.Facts) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Fleet.Put(ctx, machines...); err != nil {
		return err
	}
	starting := errgroup.Group{}
	starting.SetLimit(runtime.NumCPU())
	for _, facts := range machines {
		starting.Go(func() error { return c.run(ctx, facts) })
	}
	if err := starting.Wait(); err != nil {
		return err
	}
	for _, facts := range machines {
		if err := c.openDoors(facts); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) run(ctx context.Context, facts fleet.Facts) error {
	host := c.hosts[facts.ID]
	err := host.Configure(ctx, facts)
	if err == nil {
		err = host.Start(ctx)
	}
	if err != nil {
		return fmt.Errorf("machine %q: %w", facts.ID, err)
	}
	return nil
}

// openDoors makes the addresses of a machine lead to it, and no others; while it is down, it has no address. Addresses
// of other machines change the owner.
func (c *Cluster) openDoors(facts fleet.Facts) error {
	addresses := facts.ReachableAt
	if c.down[facts.ID] {
		addresses = nil
	}
	if err := c.closeDoors(facts.ID, addresses); err != nil {
		return err
	}
	target := c.hosts[facts.ID].address
	for _, address := range addresses {
		present, taken := c.doors[address]
		if taken && present.owner == facts.ID {
			continue
		}
		if taken {
			if err := present.Close(); err != nil {
				return err
			}
		}
		at := net.JoinHostPort(address, strconv.Itoa(constants.ApidPort))
		door := fleet.NewDoor(
			func() (net.Listener, error) { return listenAt(at) },
			forwarder(func() (string, error) { return target, nil }),
		)
		if err := door.Open(); err != nil {
			return err
		}
		c.doors[address] = addressDoor{door, facts.ID}
	}
	return nil
}

// closeDoors closes the doors of a machine at all other addresses.
func (c *Cluster) closeDoors(id string, other []string) error {
	for address, door := range c.doors {
		if door.owner != id || slices.Contains(other, address) {
			continue
		}
		delete(c.doors, address)
		if err := door.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Delete deletes a machine; its addresses do not answer any more.
func (c *Cluster) Delete(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.Fleet.Delete(id), c.closeDoors(id, nil)); err != nil {
		return err
	}
	c.hosts[id].Close()
	delete(c.hosts, id)
	delete(c.down, id)
	if c.entry == id {
		c.entry = ""
	}
	return nil
}

// SetFaults replaces all faults of a machine.
func (c *Cluster) SetFaults(ctx context.Context, id string, faults fleet.Faults) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	machine, err := c.Machine(id)
	if err != nil {
		return err
	}
	if err := machine.SetFaults(ctx, faults); err != nil {
		return err
	}
	c.down[id] = faults.Unavailable
	return c.openDoors(machine.Facts())
}

// Renew replaces the certificates of a machine's apid by ones of the same CA.
func (c *Cluster) Renew(ctx context.Context, id string) error {
	return c.with(id, func(host *Host) error { return host.Renew(ctx) })
}

// Misname gives the apid of a machine a certificate without the machine's addresses, until its facts are put again.
func (c *Cluster) Misname(ctx context.Context, id string) error {
	return c.with(id, func(host *Host) error {
		host.names = loopbackNames
		return host.Renew(ctx)
	})
}

// Enter makes the endpoints lead to a machine. Open connections stay where they are.
func (c *Cluster) Enter(_ context.Context, id string) error {
	return c.with(id, func(*Host) error {
		c.entry = id
		return nil
	})
}

// Restart kills the apid of a machine and starts it again.
func (c *Cluster) Restart(ctx context.Context, id string) error {
	return c.with(id, func(host *Host) error {
		host.Kill()
		return host.Start(ctx)
	})
}

func (c *Cluster) with(id string, do func(*Host) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	host, known := c.hosts[id]
	if !known {
		return fmt.Errorf("there is no machine %q", id)
	}
	return do(host)
}

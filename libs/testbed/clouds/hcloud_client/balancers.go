package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
)

// BalancerQuery names the objects that the changes are about.
type BalancerQuery struct {
	Servers     [2]int64 `json:"servers"` // both are attached to the network
	Network     int64    `json:"network"`
	Certificate int64    `json:"certificate"`
}

// Balancer is a load balancer as the module describes it.
type Balancer struct {
	Name     string            `json:"name"`
	Labels   map[string]string `json:"labels"`
	Type     string            `json:"type"`
	Services []string          `json:"services"` // "protocol port destination check-port"
	Targets  []string          `json:"targets"`  // "server private"
	Private  string            `json:"private"`
	Public   bool              `json:"public"`
}

// BalancerReport has what became of each step, and the balancer before it was deleted.
type BalancerReport struct {
	Steps    []string `json:"steps"` // "name: outcome", a code of the API or "ok"
	Balancer Balancer `json:"balancer"`
	Routes   []string `json:"routes"`
}

// step is one change; the next begins when its action has ended, unless it is left running.
type step struct {
	name        string
	run         func() (*hcloud.Action, error)
	leftRunning bool
}

// changeBalancers creates a load balancer, changes all of it, and deletes it.
func changeBalancers(ctx context.Context, client *hcloud.Client, query BalancerQuery) (report BalancerReport) {
	var balancer *hcloud.LoadBalancer
	network, server := &hcloud.Network{ID: query.Network}, func(i int) *hcloud.Server { return &hcloud.Server{ID: query.Servers[i]} }
	run := func(steps ...step) {
		for _, each := range steps {
			action, err := each.run()
			if err == nil && action != nil && !each.leftRunning {
				err = client.Action.WaitFor(ctx, action)
			}
			report.Steps = append(report.Steps, each.name+": "+outcome(err))
		}
	}
	create := func() (*hcloud.Action, error) {
		created, _, err := client.LoadBalancer.Create(ctx, hcloud.LoadBalancerCreateOpts{
			Name:             "go",
			LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb11"},
			Location:         &hcloud.Location{Name: "fsn1"},
			Labels:           map[string]string{"cluster": "c"},
			Network:          network,
			Targets: []hcloud.LoadBalancerCreateOptsTarget{{
				Type: hcloud.LoadBalancerTargetTypeServer, UsePrivateIP: new(true),
				Server: hcloud.LoadBalancerCreateOptsTargetServer{Server: server(0)},
			}},
			Services: []hcloud.LoadBalancerCreateOptsService{{
				Protocol: hcloud.LoadBalancerServiceProtocolTCP, ListenPort: new(80), DestinationPort: new(30080),
			}},
		})
		if err == nil {
			balancer = created.LoadBalancer
		}
		return created.Action, err
	}
	run(step{name: "create", run: create})
	if balancer == nil {
		return report
	}
	act := func(name string, call func() (*hcloud.Action, *hcloud.Response, error)) step {
		return step{name: name, run: func() (*hcloud.Action, error) {
			action, _, err := call()
			return action, err
		}}
	}
	addTarget := func(i int) func() (*hcloud.Action, *hcloud.Response, error) {
		return func() (*hcloud.Action, *hcloud.Response, error) {
			opts := hcloud.LoadBalancerAddServerTargetOpts{Server: server(i), UsePrivateIP: new(true)}
			return client.LoadBalancer.AddServerTarget(ctx, balancer, opts)
		}
	}
	addService := func() (*hcloud.Action, *hcloud.Response, error) {
		return client.LoadBalancer.AddService(ctx, balancer, hcloud.LoadBalancerAddServiceOpts{
			Protocol: hcloud.LoadBalancerServiceProtocolHTTPS, ListenPort: new(443), DestinationPort: new(30443),
			HTTP: &hcloud.LoadBalancerAddServiceOptsHTTP{Certificates: []*hcloud.Certificate{{ID: query.Certificate}}},
		})
	}
	_, podRange, _ := net.ParseCIDR("10.244.1.0/24")
	route := hcloud.NetworkRoute{Destination: podRange, Gateway: net.ParseIP("10.0.1.9")}
	addRoute := func() (*hcloud.Action, *hcloud.Response, error) {
		return client.Network.AddRoute(ctx, network, hcloud.NetworkAddRouteOpts{Route: route})
	}
	slow := act("add_target", addTarget(1))
	slow.leftRunning = true
	run(
		step{name: "create_again", run: create},
		slow,
		act("while_it_runs", addService),
	)
	for query.Servers[1] != 0 { // until the slow action has ended
		found, _, err := client.LoadBalancer.GetByID(ctx, balancer.ID)
		if err != nil || len(found.Targets) == 2 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	run(
		act("add_target_again", addTarget(1)),
		act("add_service", addService),
		act("add_service_again", addService),
		act("update_service", func() (*hcloud.Action, *hcloud.Response, error) {
			check := &hcloud.LoadBalancerUpdateServiceOptsHealthCheck{Port: new(10256)}
			opts := hcloud.LoadBalancerUpdateServiceOpts{HealthCheck: check}
			return client.LoadBalancer.UpdateService(ctx, balancer, 80, opts)
		}),
		act("remove_target", func() (*hcloud.Action, *hcloud.Response, error) {
			return client.LoadBalancer.RemoveServerTarget(ctx, balancer, server(0))
		}),
		act("disable_public_interface", func() (*hcloud.Action, *hcloud.Response, error) {
			return client.LoadBalancer.DisablePublicInterface(ctx, balancer)
		}),
		act("change_type", func() (*hcloud.Action, *hcloud.Response, error) {
			opts := hcloud.LoadBalancerChangeTypeOpts{LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb21"}}
			return client.LoadBalancer.ChangeType(ctx, balancer, opts)
		}),
		act("add_route", addRoute),
		act("add_route_again", addRoute),
		act("protect", protect(ctx, client, balancer, true)),
		act("delete_protected", remove(ctx, client, balancer)),
		act("unprotect", protect(ctx, client, balancer, false)),
	)
	if found, _, err := client.LoadBalancer.GetByID(ctx, balancer.ID); err == nil && found != nil {
		report.Balancer = describeBalancer(found)
	}
	if found, _, err := client.Network.GetByID(ctx, query.Network); err == nil && found != nil {
		for _, each := range found.Routes {
			report.Routes = append(report.Routes, fmt.Sprintf("%s %s", each.Destination, each.Gateway))
		}
	}
	run(act("delete", remove(ctx, client, balancer)), act("delete_again", remove(ctx, client, balancer)))
	return report
}

func protect(ctx context.Context, client *hcloud.Client, balancer *hcloud.LoadBalancer, is bool) func() (*hcloud.Action, *hcloud.Response, error) {
	return func() (*hcloud.Action, *hcloud.Response, error) {
		return client.LoadBalancer.ChangeProtection(ctx, balancer, hcloud.LoadBalancerChangeProtectionOpts{Delete: new(is)})
	}
}

func remove(ctx context.Context, client *hcloud.Client, balancer *hcloud.LoadBalancer) func() (*hcloud.Action, *hcloud.Response, error) {
	return func() (*hcloud.Action, *hcloud.Response, error) {
		result, response, err := client.LoadBalancer.DeleteWithResult(ctx, balancer)
		return result.Action, response, err
	}
}

func describeBalancer(balancer *hcloud.LoadBalancer) Balancer {
	described := Balancer{
		Name: balancer.Name, Labels: balancer.Labels, Type: balancer.LoadBalancerType.Name,
		Public: balancer.PublicNet.Enabled,
	}
	for _, each := range balancer.Services {
		described.Services = append(described.Services, fmt.Sprintf(
			"%s %d %d %d", each.Protocol, each.ListenPort, each.DestinationPort, each.HealthCheck.Port))
	}
	for _, each := range balancer.Targets {
		described.Targets = append(described.Targets, fmt.Sprintf("%d %t", each.Server.Server.ID, each.UsePrivateIP))
	}
	for _, each := range balancer.PrivateNet {
		described.Private += fmt.Sprintf("%d %s", each.Network.ID, each.IP)
	}
	return described
}

func outcome(err error) string {
	var failed hcloud.ActionError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &failed):
		return failed.Code
	}
	return code(err)
}

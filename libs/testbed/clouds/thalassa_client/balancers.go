package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/thalassa-cloud/client-go/filters"
	"github.com/thalassa-cloud/client-go/iaas"
	"github.com/thalassa-cloud/client-go/pkg/client"
)

// BalancerQuery names the objects that the changes are about, all of the VPC of the query.
type BalancerQuery struct {
	Subnet        string    `json:"subnet"`
	Machines      [2]string `json:"machines"`
	SecurityGroup string    `json:"security_group"`
	ReservedIP    string    `json:"reserved_ip"`
}

// Balancer is a load balancer as the module describes it.
type Balancer struct {
	Status     string            `json:"status"`
	Labels     map[string]string `json:"labels"`
	Addresses  []string          `json:"addresses"`
	ReservedIP string            `json:"reserved_ip"`
	Groups     []string          `json:"groups"`    // security groups
	Listeners  []string          `json:"listeners"` // "protocol port target-port sources"
	Targets    []string          `json:"targets"`   // machines
	Check      string            `json:"check"`     // "protocol port path"
}

// BalancerReport has what became of each step, and the balancer before it was deleted.
type BalancerReport struct {
	Steps    []string `json:"steps"` // "name: outcome", a status of HTTP or "ok"
	Balancer Balancer `json:"balancer"`
}

var status = regexp.MustCompile(`status (\d+)`)

// changeBalancers creates a load balancer, changes all of it, and deletes it. It calls compare when all is there.
func changeBalancers(ctx context.Context, cloud *iaas.Client, vpc string, query BalancerQuery, compare func()) (report BalancerReport) {
	labels := iaas.Labels{"talos-ccm/cluster": "go"}
	run := func(name string, err error) { report.Steps = append(report.Steps, name+": "+outcome(err)) }
	check := &iaas.BackendHealthCheck{
		Protocol: iaas.ProtocolHTTP, Port: 30100, Path: "/healthz", PeriodSeconds: 10, TimeoutSeconds: 5,
		UnhealthyThreshold: 3, HealthyThreshold: 2,
	}
	policy := iaas.LoadbalancingPolicyMagLev
	create := iaas.CreateLoadbalancer{
		Name: "go", Labels: labels, Subnet: query.Subnet,
		SecurityGroupAttachments: []string{query.SecurityGroup}, ReservedIpID: new(query.ReservedIP),
	}
	balancer, err := cloud.CreateLoadbalancer(ctx, create)
	run("create", err)
	_, err = cloud.CreateLoadbalancer(ctx, create)
	run("create_with_a_used_address", err)
	newGroup := iaas.CreateTargetGroup{
		Name: "go", Labels: labels, Vpc: vpc, TargetPort: 30080, Protocol: iaas.ProtocolTCP, HealthCheck: check,
		LoadbalancingPolicy: &policy, EnableProxyProtocol: new(true),
	}
	group, err := cloud.CreateTargetGroup(ctx, newGroup)
	run("create_group", err)
	if balancer == nil || group == nil {
		return report
	}
	run("wait", cloud.WaitUntilLoadbalancerIsReady(ctx, balancer.Identity))
	newGroup.HealthCheck = &iaas.BackendHealthCheck{Protocol: iaas.ProtocolHTTP, Port: 30100, PeriodSeconds: 1}
	_, err = cloud.CreateTargetGroup(ctx, newGroup)
	run("create_group_with_a_fast_check", err)
	attach := func(machines ...string) error {
		request := iaas.TargetGroupAttachmentsBatch{TargetGroupID: group.Identity, Attachments: []iaas.AttachTarget{}}
		for _, each := range machines {
			request.Attachments = append(request.Attachments, iaas.AttachTarget{ServerIdentity: each})
		}
		return cloud.SetTargetGroupServerAttachments(ctx, request)
	}
	run("attach_both", attach(query.Machines[0], query.Machines[1]))
	run("attach_unknown", attach(query.Machines[0], "vm-0"))
	run("attach_none", attach())
	for _, machine := range query.Machines {
		_, err = cloud.AttachServerToTargetGroup(ctx, iaas.AttachTargetGroupRequest{
			TargetGroupID: group.Identity, AttachTarget: iaas.AttachTarget{ServerIdentity: machine},
		})
		run("attach", err)
	}
	newListener := iaas.CreateListener{
		Name: "go", Labels: labels, Port: 80, Protocol: iaas.ProtocolTCP, TargetGroup: group.Identity,
		AllowedSources: []string{"192.0.2.0/24"}, MaxConnections: new(uint32(10)), ConnectionIdleTimeout: new(uint32(60)),
	}
	listener, err := cloud.CreateListener(ctx, balancer.Identity, newListener)
	run("create_listener", err)
	newListener.Protocol = iaas.ProtocolUDP
	_, err = cloud.CreateListener(ctx, balancer.Identity, newListener)
	run("create_listener_of_the_same_port", err)
	if listener == nil {
		return report
	}
	_, err = cloud.UpdateListener(ctx, balancer.Identity, listener.Identity, iaas.UpdateListener{
		Name: "go", Labels: labels, Port: 443, Protocol: iaas.ProtocolTCP, TargetGroup: group.Identity,
		AllowedSources: []string{"198.51.100.0/24"},
	})
	run("update_listener", err)
	_, err = cloud.UpdateTargetGroup(ctx, iaas.UpdateTargetGroupRequest{
		Identity: group.Identity, UpdateTargetGroup: iaas.UpdateTargetGroup{
			Name: "go", Labels: labels, TargetPort: 30443, Protocol: iaas.ProtocolTCP, HealthCheck: check,
		},
	})
	run("update_group", err)
	update := iaas.UpdateLoadbalancer{Name: "go", Labels: labels, ReservedIpID: new(""), DeleteProtection: true}
	_, err = cloud.UpdateLoadbalancer(ctx, balancer.Identity, update)
	run("update", err)
	run("delete_used_group", cloud.DeleteTargetGroup(ctx, iaas.DeleteTargetGroupRequest{Identity: group.Identity}))
	run("delete_protected", cloud.DeleteLoadbalancer(ctx, balancer.Identity))
	report.Balancer = describeBalancer(ctx, cloud, labels)
	compare()
	update.DeleteProtection = false
	_, err = cloud.UpdateLoadbalancer(ctx, balancer.Identity, update)
	run("unprotect", err)
	run("delete", cloud.DeleteLoadbalancer(ctx, balancer.Identity))
	run("wait_until_deleted", cloud.WaitUntilLoadbalancerIsDeleted(ctx, balancer.Identity))
	run("delete_group", cloud.DeleteTargetGroup(ctx, iaas.DeleteTargetGroupRequest{Identity: group.Identity}))
	run("delete_again", cloud.DeleteLoadbalancer(ctx, balancer.Identity))
	return report
}

// describeBalancer describes the load balancer and the target group that have the labels.
func describeBalancer(ctx context.Context, cloud *iaas.Client, labels iaas.Labels) (described Balancer) {
	of := []filters.Filter{&filters.LabelFilter{MatchLabels: labels}}
	balancers, err := cloud.ListLoadbalancers(ctx, &iaas.ListLoadbalancersRequest{Filters: of})
	if err != nil || len(balancers) != 1 {
		return described
	}
	balancer := balancers[0]
	described = Balancer{
		Status: balancer.Status, Labels: balancer.Labels, Addresses: balancer.ExternalIpAddresses,
		ReservedIP: balancer.ReservedIpIdentity,
	}
	for _, each := range balancer.SecurityGroups {
		described.Groups = append(described.Groups, each.Identity)
	}
	listeners, err := cloud.ListListeners(ctx, &iaas.ListLoadbalancerListenersRequest{Loadbalancer: balancer.Identity})
	if err != nil {
		return described
	}
	for _, each := range listeners {
		described.Listeners = append(described.Listeners, fmt.Sprintf(
			"%s %d %d %v", each.Protocol, each.Port, each.TargetGroup.TargetPort, each.AllowedSources))
	}
	groups, err := cloud.ListTargetGroups(ctx, &iaas.ListTargetGroupsRequest{Filters: of})
	if err != nil || len(groups) != 1 {
		return described
	}
	for _, each := range groups[0].LoadbalancerTargetGroupAttachments {
		described.Targets = append(described.Targets, each.VirtualMachineInstance.Identity)
	}
	check := groups[0].HealthCheck
	described.Check = fmt.Sprintf("%s %d %s", check.Protocol, check.Port, check.Path)
	return described
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, client.ErrNotFound):
		return "404"
	case errors.Is(err, client.ErrBadRequest):
		return "400"
	}
	if found := status.FindStringSubmatch(err.Error()); found != nil {
		return found[1]
	}
	return err.Error()
}

// A client of the Thalassa Cloud API with the cloud's own Go module. It reads one JSON query from stdin, and writes
// what the module made of the answers.
package main

import (
	"context"

	"github.com/thalassa-cloud/client-go/filters"
	"github.com/thalassa-cloud/client-go/iaas"
	"github.com/thalassa-cloud/client-go/pkg/client"

	"talos-ccm/testbed/peer"
)

// Query is what to ask, all of it below the endpoint.
type Query struct {
	Endpoint     string   `json:"endpoint"`
	Organisation string   `json:"organisation"`
	Token        string   `json:"token"`     // a personal access token, or
	ClientID     string   `json:"client_id"` // client credentials
	ClientSecret string   `json:"client_secret"`
	Machines     []string `json:"machines"` // looked up by identity
	Vpc          string   `json:"vpc"`      // only machines of this one are listed

	Changes *BalancerQuery `json:"changes"` // what to change, after all of this
}

// Machine is what the controller of the cloud takes from a machine.
type Machine struct {
	Identity  string   `json:"identity"`
	Slug      string   `json:"slug"`
	Status    string   `json:"status"`
	State     string   `json:"state"`
	Region    string   `json:"region"` // of its VPC
	Zone      string   `json:"zone"`
	Type      string   `json:"type"`
	Addresses []string `json:"addresses"`
}

// Report has the answers; an error is the text of the module.
type Report struct {
	Error    string            `json:"error"` // of the list, which is then empty
	Machines []Machine         `json:"machines"`
	Found    map[string]string `json:"found"` // by identity: the slug, "" if the module says that there is none
	Vpcs     []string          `json:"vpcs"`
	Unlike   []string          `json:"unlike"` // where answers differ from the types
	Changes  BalancerReport    `json:"changes"`
}

func main() { peer.Run(ask) }

func ask(ctx context.Context, query Query) (Report, error) {
	auth := client.WithAuthPersonalToken(query.Token)
	if query.ClientID != "" {
		auth = client.WithAuthOIDC(query.ClientID, query.ClientSecret, query.Endpoint+"/oidc/token")
	}
	base, err := client.NewClient(
		client.WithBaseURL(query.Endpoint), client.WithOrganisation(query.Organisation), auth)
	if err != nil {
		return Report{}, err
	}
	cloud, err := iaas.New(base)
	if err != nil {
		return Report{}, err
	}
	report := Report{Found: map[string]string{}}
	request := &iaas.ListMachinesRequest{
		Filters: []filters.Filter{&filters.FilterKeyValue{Key: filters.FilterVpcIdentity, Value: query.Vpc}},
	}
	machines, err := cloud.ListMachines(ctx, request)
	if err != nil {
		report.Error = err.Error()
		return report, nil
	}
	for _, each := range machines {
		report.Machines = append(report.Machines, describe(each))
	}
	for _, identity := range query.Machines {
		found, err := cloud.GetMachine(ctx, identity)
		switch {
		case client.IsNotFound(err):
			report.Found[identity] = ""
		case err != nil:
			report.Found[identity] = err.Error()
		default:
			report.Found[identity] = found.Slug
		}
	}
	vpcs, err := cloud.ListVpcs(ctx, nil)
	if err != nil {
		return Report{}, err
	}
	for _, each := range vpcs {
		found, err := cloud.GetVpc(ctx, each.Identity)
		if err != nil {
			return Report{}, err
		}
		report.Vpcs = append(report.Vpcs, found.Identity)
	}
	lists := map[string]peer.Types{
		iaas.MachineEndpoint: peer.TypesOf[[]iaas.Machine, iaas.Machine](),
		iaas.VpcEndpoint:     peer.TypesOf[[]iaas.Vpc, iaas.Vpc](),
	}
	if query.Changes != nil {
		lists = map[string]peer.Types{
			iaas.LoadbalancerEndpoint: peer.TypesOf[[]iaas.VpcLoadbalancer, iaas.VpcLoadbalancer](),
			iaas.TargetGroupEndpoint:  peer.TypesOf[[]iaas.VpcLoadbalancerTargetGroup, iaas.VpcLoadbalancerTargetGroup](),
		}
		compare := func() { report.Unlike = compareShapes(ctx, base, lists) }
		report.Changes = changeBalancers(ctx, cloud, query.Vpc, *query.Changes, compare)
		return report, nil
	}
	report.Unlike = compareShapes(ctx, base, lists)
	return report, nil
}

func describe(machine iaas.Machine) Machine {
	described := Machine{
		Identity: machine.Identity, Slug: machine.Slug, Status: machine.Status.Status, State: string(machine.State),
		Region: machine.Vpc.CloudRegion.Slug, Zone: *machine.AvailabilityZone, Type: machine.MachineType.Slug,
	}
	for _, each := range machine.Interfaces {
		described.Addresses = append(described.Addresses, each.IPAddresses...)
	}
	return described
}

// compareShapes compares each list and one object of each with the types of the module.
func compareShapes(ctx context.Context, base client.Client, lists map[string]peer.Types) []string {
	unlike := peer.Differences{}
	read := func(path string) ([]byte, error) {
		response, err := base.RawRequest(ctx, "GET", path, nil)
		if err != nil {
			return nil, err
		}
		return response.Body(), nil
	}
	unlike.CompareLists(lists, read)
	return unlike.Sorted()
}

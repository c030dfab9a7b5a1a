// A client of OpenStack with gophercloud, the module of the cloud's own controller. It reads one JSON query from stdin,
// and writes what the module made of the answers.
package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/instanceactions"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"

	"talos-ccm/testbed/peer"
)

// Query is what to ask, by an application credential.
type Query struct {
	AuthURL string   `json:"auth_url"`
	ID      string   `json:"id"`
	Secret  string   `json:"secret"`
	Region  string   `json:"region"`
	Servers []string `json:"servers"` // looked up by id
	Name    string   `json:"name"`    // a regular expression
}

// Server is what the controller of the cloud takes from a server.
type Server struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Status  string `json:"status"`
	Project string `json:"project"`
	Zone    string `json:"zone"`
}

// Report has the answers; an error is the text of the module.
type Report struct {
	Error    string              `json:"error"` // of the login, which is then all
	Servers  []Server            `json:"servers"`
	Found    map[string]string   `json:"found"`   // by id: the name, "" if Nova says that there is none
	Actions  map[string][]string `json:"actions"` // by id: "action event result", for each event
	ByName   []string            `json:"by_name"`
	Networks []string            `json:"networks"`
}

func main() { peer.Run(ask) }

func ask(ctx context.Context, query Query) (Report, error) {
	cloud, err := openstack.AuthenticatedClient(ctx, gophercloud.AuthOptions{
		IdentityEndpoint: query.AuthURL, ApplicationCredentialID: query.ID, ApplicationCredentialSecret: query.Secret,
	})
	if err != nil {
		return Report{Error: err.Error()}, nil
	}
	where := gophercloud.EndpointOpts{Region: query.Region}
	nova, err := openstack.NewComputeV2(cloud, where)
	if err != nil {
		return Report{}, err
	}
	nova.Microversion = "2.69"
	neutron, err := openstack.NewNetworkV2(cloud, where)
	if err != nil {
		return Report{}, err
	}
	report := Report{Found: map[string]string{}, Actions: map[string][]string{}}
	for _, id := range query.Servers {
		found, err := servers.Get(ctx, nova, id).Extract()
		switch {
		case gophercloud.ResponseCodeIs(err, http.StatusNotFound):
			report.Found[id] = ""
		case err != nil:
			return Report{}, err
		default:
			report.Found[id] = found.Name
		}
		if report.Actions[id], err = listEvents(ctx, nova, id); err != nil {
			return Report{}, err
		}
	}
	if report.Servers, err = list(ctx, nova, servers.ListOpts{Limit: 100}); err != nil {
		return Report{}, err
	}
	named, err := list(ctx, nova, servers.ListOpts{Name: query.Name})
	if err != nil {
		return Report{}, err
	}
	for _, each := range named {
		report.ByName = append(report.ByName, each.ID)
	}
	pages, err := networks.List(neutron, networks.ListOpts{}).AllPages(ctx)
	if err != nil {
		return Report{}, err
	}
	all, err := networks.ExtractNetworks(pages)
	for _, each := range all {
		report.Networks = append(report.Networks, each.ID+" "+each.ProjectID)
	}
	return report, err
}

func list(ctx context.Context, nova *gophercloud.ServiceClient, options servers.ListOpts) ([]Server, error) {
	pages, err := servers.List(nova, options).AllPages(ctx)
	if err != nil {
		return nil, err
	}
	all, err := servers.ExtractServers(pages)
	described := []Server{}
	for _, each := range all {
		described = append(described, Server{each.ID, each.Name, each.Status, each.TenantID, each.AvailabilityZone})
	}
	return described, err
}

// listEvents returns nothing for a server whose actions Nova does not show.
func listEvents(ctx context.Context, nova *gophercloud.ServiceClient, id string) ([]string, error) {
	described := []string{}
	pages, err := instanceactions.List(nova, id, nil).AllPages(ctx)
	if gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		return described, nil
	}
	if err != nil {
		return nil, err
	}
	actions, err := instanceactions.ExtractInstanceActions(pages)
	if err != nil {
		return nil, err
	}
	for _, each := range actions {
		action, err := instanceactions.Get(ctx, nova, id, each.RequestID).Extract()
		if err != nil {
			return nil, err
		}
		if action.Events == nil {
			continue
		}
		for _, event := range *action.Events {
			described = append(described, fmt.Sprintf("%s %s %s", action.Action, event.Event, event.Result))
		}
	}
	return described, nil
}

// A client of the Hetzner Cloud API with the cloud's own Go module. It reads one JSON query from stdin, and writes
// what the module made of the answers.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"talos-ccm/testbed/peer"
)

// Query is what to ask, all of it below the endpoint.
type Query struct {
	Endpoint string  `json:"endpoint"`
	Token    string  `json:"token"`
	Servers  []int64 `json:"servers"` // looked up by id
	Name     string  `json:"name"`    // looked up by name

	Changes *BalancerQuery `json:"changes"` // what to change, after all of this
}

// Server is what the controller of the cloud takes from a server.
type Server struct {
	ID       int64    `json:"id"`
	Name     string   `json:"name"`
	Status   string   `json:"status"`
	Location string   `json:"location"`
	Type     string   `json:"type"`
	IPv4     string   `json:"ipv4"`
	IPv6     string   `json:"ipv6"`
	Private  []string `json:"private"` // "network address"
}

// Report has the answers; an error is the code of the API, or the text of another failure.
type Report struct {
	Error   string            `json:"error"` // of the list, which is then empty
	Servers []Server          `json:"servers"`
	Found   map[string]string `json:"found"`   // by id: the name, "" if the module says that there is none
	ByName  int64             `json:"by_name"` // 0: none
	Anchors map[string]int    `json:"anchors"` // how many the project has, by the path of their list
	Limit   int               `json:"limit"`
	Remains int               `json:"remains"`
	Unlike  []string          `json:"unlike"` // where answers differ from the schema

	Changes BalancerReport `json:"changes"`
}

func main() { peer.Run(ask) }

func ask(ctx context.Context, query Query) (Report, error) {
	client := hcloud.NewClient(
		hcloud.WithEndpoint(query.Endpoint),
		hcloud.WithToken(query.Token),
		hcloud.WithRetryOpts(hcloud.RetryOpts{MaxRetries: 0}),
		hcloud.WithPollOpts(hcloud.PollOpts{BackoffFunc: hcloud.ConstantBackoff(10 * time.Millisecond)}),
	)
	report := Report{Found: map[string]string{}, Anchors: map[string]int{}}
	servers, err := client.Server.All(ctx)
	if err != nil {
		report.Error = code(err)
		return report, nil
	}
	for _, each := range servers {
		report.Servers = append(report.Servers, describe(each))
	}
	for _, id := range query.Servers {
		found, response, err := client.Server.GetByID(ctx, id)
		switch {
		case err != nil:
			report.Found[fmt.Sprint(id)] = code(err)
		case found == nil:
			report.Found[fmt.Sprint(id)] = ""
		default:
			report.Found[fmt.Sprint(id)] = found.Name
			report.Limit, report.Remains = response.Meta.Ratelimit.Limit, response.Meta.Ratelimit.Remaining
		}
	}
	if found, _, err := client.Server.GetByName(ctx, query.Name); err != nil {
		report.Error = code(err)
	} else if found != nil {
		report.ByName = found.ID
	}
	report.Error = countAnchors(ctx, client, report.Anchors)
	report.Unlike = compareShapes(ctx, query)
	if query.Changes != nil {
		report.Changes = changeBalancers(ctx, client, *query.Changes)
	}
	return report, nil
}

func countAnchors(ctx context.Context, client *hcloud.Client, into map[string]int) string {
	networks, err := client.Network.All(ctx)
	keys, keysErr := client.SSHKey.All(ctx)
	walls, wallsErr := client.Firewall.All(ctx)
	volumes, volumesErr := client.Volume.All(ctx)
	images, imagesErr := client.Image.AllWithOpts(ctx, hcloud.ImageListOpts{Type: []hcloud.ImageType{hcloud.ImageTypeSnapshot}})
	into["networks"], into["ssh_keys"], into["firewalls"] = len(networks), len(keys), len(walls)
	into["volumes"], into["images"] = len(volumes), len(images)
	if err := errors.Join(err, keysErr, wallsErr, volumesErr, imagesErr); err != nil {
		return code(err)
	}
	return ""
}

func describe(server *hcloud.Server) Server {
	described := Server{
		ID: server.ID, Name: server.Name, Status: string(server.Status), Location: server.Location.Name,
		Type: server.ServerType.Name,
	}
	if !server.PublicNet.IPv4.IsUnspecified() {
		described.IPv4 = server.PublicNet.IPv4.IP.String()
	}
	if !server.PublicNet.IPv6.IsUnspecified() {
		described.IPv6 = server.PublicNet.IPv6.Network.String()
	}
	for _, each := range server.PrivateNet {
		described.Private = append(described.Private, fmt.Sprintf("%d %s", each.Network.ID, each.IP))
	}
	return described
}

func code(err error) string {
	var failed hcloud.Error
	if errors.As(err, &failed) {
		return string(failed.Code)
	}
	return err.Error()
}

// compareShapes compares each list and one object of each with the module's schema.
func compareShapes(ctx context.Context, query Query) []string {
	unlike := peer.Differences{}
	readPath := func(path string) ([]byte, error) { return read(ctx, query, path) }
	unlike.CompareLists(map[string]peer.Types{
		"servers":             peer.TypesOf[schema.ServerListResponse, schema.ServerGetResponse](),
		"networks":            peer.TypesOf[schema.NetworkListResponse, schema.NetworkGetResponse](),
		"ssh_keys":            peer.TypesOf[schema.SSHKeyListResponse, schema.SSHKeyGetResponse](),
		"firewalls":           peer.TypesOf[schema.FirewallListResponse, schema.FirewallGetResponse](),
		"volumes":             peer.TypesOf[schema.VolumeListResponse, schema.VolumeGetResponse](),
		"images":              peer.TypesOf[schema.ImageListResponse, schema.ImageGetResponse](),
		"load_balancers":      peer.TypesOf[schema.LoadBalancerListResponse, schema.LoadBalancerGetResponse](),
		"load_balancer_types": peer.TypesOf[schema.LoadBalancerTypeListResponse, schema.LoadBalancerTypeGetResponse](),
		"certificates":        peer.TypesOf[schema.CertificateListResponse, schema.CertificateGetResponse](),
		"locations":           peer.TypesOf[schema.LocationListResponse, schema.LocationGetResponse](),
	}, readPath, "meta") // meta has a schema of its own
	body, err := read(ctx, query, "servers")
	var meta schema.MetaResponse
	if err := errors.Join(err, json.Unmarshal(body, &meta)); err != nil || meta.Meta.Pagination == nil {
		unlike[fmt.Sprintf("servers: no pagination: %v", err)] = true
	}
	return unlike.Sorted()
}

func read(ctx context.Context, query Query, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, query.Endpoint+"/"+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+query.Token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

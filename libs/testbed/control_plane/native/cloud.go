package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

// The content of the cloud's file, which is read for every query.
type content struct {
	Scheme    string     `json:"scheme"` // of its providerIDs
	Instances []instance `json:"instances"`
	// Of load balancers, by namespace/name of the Service; without an entry they have no address
	Treatments map[string]treatment `json:"treatments"`
	// Destinations to which it creates no route
	RefusedDestinations []string `json:"refused_destinations"`
}

type instance struct {
	Name           string   `json:"name"`
	ProviderID     string   `json:"provider_id"`
	InstanceType   string   `json:"instance_type"`
	Zone           string   `json:"zone"`
	Region         string   `json:"region"`
	InternalIPs    []string `json:"internal_ips"`
	ExternalIPs    []string `json:"external_ips"`
	Shutdown       bool     `json:"shutdown"`
	OutsideNetwork bool     `json:"outside_network"` // no route can lead to it
}

var errUnnamed = errors.New("no instance has that name, and the Node has no providerID: it may be another's")

type cloud struct{ file string }

func (c cloud) InstanceExists(_ context.Context, node *v1.Node) (bool, error) {
	found, err := c.find(node)
	return found != nil, err
}

func (c cloud) InstanceShutdown(_ context.Context, node *v1.Node) (bool, error) {
	found, err := c.find(node)
	return found != nil && found.Shutdown, err
}

func (c cloud) InstanceMetadata(_ context.Context, node *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	found, err := c.find(node)
	if errors.Is(err, errUnnamed) || err == nil && found == nil {
		return nil, cloudprovider.InstanceNotFound
	}
	if err != nil {
		return nil, err
	}
	addresses := []v1.NodeAddress{{Type: v1.NodeHostName, Address: found.Name}}
	for _, ip := range found.InternalIPs {
		addresses = append(addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	for _, ip := range found.ExternalIPs {
		addresses = append(addresses, v1.NodeAddress{Type: v1.NodeExternalIP, Address: ip})
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID:    found.ProviderID,
		InstanceType:  found.InstanceType,
		Zone:          found.Zone,
		Region:        found.Region,
		NodeAddresses: addresses,
	}, nil
}

// find searches by providerID if the Node has one, else by name. A providerID of another scheme is an error, and
// so is an unknown name without a providerID: the Node may belong to another cloud.
func (c cloud) find(node *v1.Node) (*instance, error) {
	now, err := c.read()
	if err != nil {
		return nil, err
	}
	id := node.Spec.ProviderID
	if id != "" && !strings.HasPrefix(id, now.Scheme+"://") {
		return nil, fmt.Errorf("providerID %q is not one of %s", id, now.Scheme)
	}
	for _, each := range now.Instances {
		if id == each.ProviderID || id == "" && node.Name == each.Name {
			return &each, nil
		}
	}
	if id == "" {
		return nil, errUnnamed
	}
	return nil, nil
}

func (c cloud) read() (content, error) {
	var now content
	text, err := os.ReadFile(c.file)
	if err != nil {
		return now, err
	}
	return now, json.Unmarshal(text, &now)
}

func (c cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	return &balancers{cloud: c}, true
}

func (c cloud) Routes() (cloudprovider.Routes, bool) {
	return &routes{cloud: c}, true
}

func (c cloud) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return c, true }
func (c cloud) ProviderName() string                                              { return "native" }
func (c cloud) HasClusterID() bool                                                { return true }
func (c cloud) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (c cloud) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (c cloud) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (c cloud) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}

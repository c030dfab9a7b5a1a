package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// A route that exists: one file for each, named for its destination.
type route struct {
	Destination string `json:"destination"`
	Node        string `json:"node"` // "" = a route to something else
}

// The routes, in a folder beside the cloud's file. The controller asks for several at once.
type routes struct {
	cloud cloud
	lock  sync.Mutex
}

func (r *routes) ListRoutes(_ context.Context, _ string) ([]*cloudprovider.Route, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	now, err := r.cloud.read()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(r.folder(), "*.json"))
	if err != nil {
		return nil, err
	}
	listed := []*cloudprovider.Route{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var found route
		if err := json.Unmarshal(text, &found); err != nil {
			return nil, err
		}
		listed = append(listed, &cloudprovider.Route{
			Name:            found.Destination,
			TargetNode:      types.NodeName(found.Node),
			DestinationCIDR: found.Destination,
			Blackhole:       now.byName(found.Node) == nil,
		})
	}
	return listed, nil
}

func (r *routes) CreateRoute(_ context.Context, _ string, _ string, wanted *cloudprovider.Route) error {
	r.lock.Lock()
	defer r.lock.Unlock()
	now, err := r.cloud.read()
	if err != nil {
		return err
	}
	target := now.byName(string(wanted.TargetNode))
	if target == nil || target.OutsideNetwork {
		return fmt.Errorf("no instance %s in the network", wanted.TargetNode)
	}
	for _, refused := range now.RefusedDestinations {
		if refused == wanted.DestinationCIDR {
			return fmt.Errorf("refused: %s", refused)
		}
	}
	text, err := json.Marshal(route{Destination: wanted.DestinationCIDR, Node: target.Name})
	if err != nil {
		return err
	}
	// As hcloud-ccm, it replaces a route that leads elsewhere.
	file := r.file(wanted.DestinationCIDR)
	fresh := file + ".fresh"
	if err := os.WriteFile(fresh, text, 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, file)
}

func (r *routes) DeleteRoute(_ context.Context, _ string, found *cloudprovider.Route) error {
	r.lock.Lock()
	defer r.lock.Unlock()
	// The controller creates and deletes at once: only the route that it has listed goes.
	file := r.file(found.DestinationCIDR)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var present route
	if err := json.Unmarshal(text, &present); err != nil {
		return err
	}
	if present.Node != string(found.TargetNode) {
		return nil
	}
	return os.Remove(file)
}

func (r *routes) folder() string {
	return filepath.Join(filepath.Dir(r.cloud.file), "routes")
}

func (r *routes) file(destination string) string {
	return filepath.Join(r.folder(), strings.ReplaceAll(destination, "/", "_")+".json")
}

func (c content) byName(name string) *instance {
	for _, each := range c.Instances {
		if each.Name == name {
			return &each
		}
	}
	return nil
}

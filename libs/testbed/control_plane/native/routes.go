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
	file := r.file(wanted.DestinationCIDR)
	if _, err := os.Stat(file); err == nil {
		return errors.New("a route of that destination exists")
	}
	fresh := file + ".fresh"
	if err := os.WriteFile(fresh, text, 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, file)
}

func (r *routes) DeleteRoute(_ context.Context, _ string, found *cloudprovider.Route) error {
	r.lock.Lock()
	defer r.lock.Unlock()
	if err := os.Remove(r.file(found.DestinationCIDR)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
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

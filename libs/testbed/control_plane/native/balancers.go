package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/cloud-provider/api"
)

// How the cloud treats the load balancer of one Service.
type treatment struct {
	Ingress []v1.LoadBalancerIngress `json:"ingress"`
	Error   string                   `json:"error"` // of every write, "" for success
	// After a failed ensure; 0 = by the service controller's own back-off
	RetrySeconds float64 `json:"retry_seconds"`
}

// A load balancer that exists: one file for each, named for the Service's uid.
type balancer struct {
	Service string   `json:"service"` // namespace/name
	Nodes   []string `json:"nodes"`
}

// The load balancers, in a folder beside the cloud's file. The controller asks for several Services at once.
type balancers struct {
	cloud cloud
	lock  sync.Mutex
}

func (b *balancers) GetLoadBalancer(_ context.Context, _ string, service *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if _, err := os.Stat(b.file(service)); errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, err
	}
	treated, err := b.treatment(service)
	return &v1.LoadBalancerStatus{Ingress: treated.Ingress}, err == nil, err
}

func (b *balancers) GetLoadBalancerName(_ context.Context, _ string, service *v1.Service) string {
	return string(service.UID)
}

func (b *balancers) EnsureLoadBalancer(_ context.Context, _ string, service *v1.Service, nodes []*v1.Node) (*v1.LoadBalancerStatus, error) {
	treated, err := b.write(service, nodes)
	if err != nil && treated.RetrySeconds > 0 {
		err = api.NewRetryError(err.Error(), time.Duration(treated.RetrySeconds*float64(time.Second)))
	}
	return &v1.LoadBalancerStatus{Ingress: treated.Ingress}, err
}

func (b *balancers) UpdateLoadBalancer(_ context.Context, _ string, service *v1.Service, nodes []*v1.Node) error {
	_, err := b.write(service, nodes)
	return err
}

func (b *balancers) EnsureLoadBalancerDeleted(_ context.Context, _ string, service *v1.Service) error {
	b.lock.Lock()
	defer b.lock.Unlock()
	if treated, err := b.treatment(service); err != nil {
		return err
	} else if treated.Error != "" {
		return errors.New(treated.Error)
	}
	if err := os.Remove(b.file(service)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (b *balancers) write(service *v1.Service, nodes []*v1.Node) (treatment, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	treated, err := b.treatment(service)
	if err != nil {
		return treated, err
	}
	if treated.Error != "" {
		return treated, errors.New(treated.Error)
	}
	wanted := balancer{Service: service.Namespace + "/" + service.Name, Nodes: []string{}}
	for _, node := range nodes {
		wanted.Nodes = append(wanted.Nodes, node.Name)
	}
	text, err := json.Marshal(wanted)
	if err != nil {
		return treated, err
	}
	fresh := b.file(service) + ".fresh"
	if err := os.WriteFile(fresh, text, 0o600); err != nil {
		return treated, err
	}
	return treated, os.Rename(fresh, b.file(service))
}

func (b *balancers) treatment(service *v1.Service) (treatment, error) {
	now, err := b.cloud.read()
	return now.Treatments[service.Namespace+"/"+service.Name], err
}

func (b *balancers) file(service *v1.Service) string {
	return filepath.Join(filepath.Dir(b.cloud.file), "balancers", string(service.UID)+".json")
}

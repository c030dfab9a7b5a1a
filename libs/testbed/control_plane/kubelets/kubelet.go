package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	nodesPath  = "/api/v1/nodes"
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
)

// Kubelet is one node's name and the objects that its kubelet writes, with "@now@" and "@now-micro@" for the time.
type Kubelet struct {
	Name      string          `json:"name"`
	Addresses []string        `json:"addresses"` // in its certificate
	Node      json.RawMessage `json:"node"`      // created first: not ready, tainted
	Ready     json.RawMessage `json:"ready"`     // the next status patch
	Heartbeat json.RawMessage `json:"heartbeat"` // the status patch without changes
	Lease     json.RawMessage `json:"lease"`
}

// Join registers the node and reports it ready, as the kubelet does once its runtime is up.
func (k Kubelet) Join(ctx context.Context, api *API) error {
	if err := api.must(ctx, http.StatusCreated, http.MethodPost, nodesPath, k.Name, jsonType, at(k.Node)); err != nil {
		return err
	}
	return k.report(ctx, api, k.Ready)
}

// Beat reports the conditions with a new time and renews the node's Lease.
func (k Kubelet) Beat(ctx context.Context, api *API) error {
	if err := k.report(ctx, api, k.Heartbeat); err != nil {
		return err
	}
	lease := at(k.Lease)
	err := api.must(ctx, http.StatusOK, http.MethodPatch, leasesPath+"/"+k.Name, k.Name, mergeType, lease)
	if isStatus(err, http.StatusNotFound) {
		return api.must(ctx, http.StatusCreated, http.MethodPost, leasesPath, k.Name, jsonType, lease)
	}
	return err
}

// Delete deletes the node, and its Lease with it, as an admin; a missing node is no error.
func (k Kubelet) Delete(ctx context.Context, api *API) error {
	return api.gone(ctx, nodesPath+"/"+k.Name)
}

func (k Kubelet) report(ctx context.Context, api *API, status []byte) error {
	path := nodesPath + "/" + k.Name + "/status"
	return api.must(ctx, http.StatusOK, http.MethodPatch, path, k.Name, strategicType, at(status))
}

func at(body []byte) []byte {
	now := time.Now().UTC()
	body = bytes.ReplaceAll(body, []byte("@now@"), []byte(now.Format("2006-01-02T15:04:05Z")))
	return bytes.ReplaceAll(body, []byte("@now-micro@"), []byte(now.Format("2006-01-02T15:04:05.000000Z")))
}

// signingRequest returns the request of a kubelet for a serving certificate (certificates/v1). It discards the
// key, because no process serves with it.
func signingRequest(node string, addresses []string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.CertificateRequest{
		Subject:  pkix.Name{Organization: []string{"system:nodes"}, CommonName: nodeUser + node},
		DNSNames: []string{node},
	}
	for _, text := range addresses {
		address := net.ParseIP(text)
		if address == nil {
			return nil, fmt.Errorf("%q is not a valid address of %s", text, node)
		}
		template.IPAddresses = append(template.IPAddresses, address)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"apiVersion": "certificates.k8s.io/v1",
		"kind":       "CertificateSigningRequest",
		"metadata":   map[string]any{"generateName": "csr-"},
		"spec": map[string]any{
			"request":    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			"signerName": "kubernetes.io/kubelet-serving",
			"usages":     []string{"digital signature", "server auth"},
		},
	})
}

// createdName returns the name that the API server gave to the created object.
func createdName(text []byte) (string, error) {
	var created struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &created); err != nil {
		return "", err
	}
	if created.Metadata.Name == "" {
		return "", fmt.Errorf("created object without a name: %.200s", text)
	}
	return created.Metadata.Name, nil
}

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
)

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

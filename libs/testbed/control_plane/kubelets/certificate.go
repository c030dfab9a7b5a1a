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

// signingRequest is what a kubelet POSTs to get a serving certificate (certificates/v1), its key thrown away:
// nobody will serve with it.
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
			return nil, fmt.Errorf("%q, an address of %s, is none", text, node)
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

// createdName is the name that the API server gave to what was POSTed.
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
		return "", fmt.Errorf("what was created bears no name: %.200s", text)
	}
	return created.Metadata.Name, nil
}

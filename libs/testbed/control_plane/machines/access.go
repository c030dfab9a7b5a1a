package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/meta/spec"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"talos-ccm/testbed/machines/fleet"
)

// definitions are the types of Talos that a cloud controller may read, with Talos's own sensitivity.
var definitions = []meta.ResourceDefinitionProvider{
	&runtime.PlatformMetadata{}, &runtime.Version{}, &runtime.MachineStatus{}, &runtime.ExtensionStatus{},
	&hardware.SystemInformation{}, &hardware.Processor{}, &hardware.MemoryModule{},
	&network.AddressStatus{}, &network.NodeAddress{}, &network.HostnameStatus{}, &network.LinkStatus{},
	&network.RouteStatus{},
	&k8s.Nodename{}, &k8s.NodeIP{}, &k8s.NodeStatus{}, &k8s.ControllerManagerConfig{}, &k8s.KubeletSpec{}, &k8s.KubeletConfig{},
	&cluster.Info{}, &cluster.Identity{}, &cluster.Member{}, &cluster.Affiliate{},
	&config.MachineType{}, &config.MachineConfig{},
}

var namespaces = []string{
	runtime.NamespaceName, hardware.NamespaceName, network.NamespaceName, network.ConfigNamespaceName, k8s.NamespaceName,
	k8s.ControlPlaneNamespaceName, cluster.NamespaceName, cluster.RawNamespaceName, config.NamespaceName,
}

var sensitivity = func() map[string]spec.Sensitivity {
	known := map[string]spec.Sensitivity{}
	for _, provider := range definitions {
		definition := provider.ResourceDefinition()
		known[strings.ToLower(definition.Type)] = definition.Sensitivity
	}
	return known
}()

// access is Talos's policy for clients that are not os:admin, with the order and messages of its internal/app/resources/access.go.
func access(_ context.Context, asked state.Access) error {
	kind, supported := sensitivity[strings.ToLower(asked.ResourceType)]
	if !supported {
		return fleet.NotSupported(asked.ResourceType)
	}
	if kind == meta.Sensitive {
		return fleet.NotAuthorized()
	}
	if !slices.Contains(namespaces, asked.ResourceNamespace) {
		return status.Errorf(codes.PermissionDenied, "namespace %q is not supported", asked.ResourceNamespace)
	}
	return nil
}

// authorize requires a role that may read, from the organizations of the client certificate.
func authorize(ctx context.Context) error {
	if client, ok := peer.FromContext(ctx); ok {
		if info, ok := client.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			for _, role := range info.State.PeerCertificates[0].Subject.Organization {
				if role == "os:reader" || role == "os:operator" || role == "os:admin" {
					return nil
				}
			}
		}
	}
	return fleet.NotAuthorized()
}

// tlsConfig is the one of apid: mutual TLS 1.2 or later. It reads the files for each connection, so they can be replaced.
func tlsConfig(directory string) *tls.Config {
	load := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		certificate, err := tls.LoadX509KeyPair(filepath.Join(directory, "server.crt"), filepath.Join(directory, "server.key"))
		if err != nil {
			return nil, err
		}
		authority, err := os.ReadFile(filepath.Join(directory, "ca.crt"))
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(authority) {
			return nil, errors.New("ca.crt has no certificate")
		}
		return &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, SessionTicketsDisabled: true,
			Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
			VerifyPeerCertificate: onlyForClients,
		}, nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, GetConfigForClient: load}
}

func onlyForClients(_ [][]byte, chains [][]*x509.Certificate) error {
	for _, chain := range chains {
		if slices.Equal(chain[0].ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
			return nil
		}
	}
	return errors.New("the certificate is not for client authentication only")
}

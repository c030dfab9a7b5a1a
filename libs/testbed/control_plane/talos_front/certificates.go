package main

import (
	"bytes"
	stdtls "crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

const servedSeconds = 30

// Authority is the CA of the Talos API, in files that the caller may replace: the key first, then the certificate.
type Authority struct{ certificate, key string }

// NewAuthority returns the CA in a directory.
func NewAuthority(directory string) *Authority {
	return &Authority{filepath.Join(directory, "ca.crt"), filepath.Join(directory, "ca.key")}
}

func (a *Authority) read() ([]byte, error) { return os.ReadFile(a.certificate) }

// issue returns what Talos's controller writes for apid: as there, only a control plane has a client certificate.
func (a *Authority) issue(names []string, controlPlane bool) (*secrets.APICertsSpec, error) {
	pair, err := x509.NewCertificateAndKeyFromFiles(a.certificate, a.key)
	if err != nil {
		return nil, err
	}
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(pair)
	if err != nil {
		return nil, err
	}
	var (
		addresses []net.IP
		hosts     []string
	)
	for _, name := range names {
		if address := net.ParseIP(name); address != nil {
			addresses = append(addresses, address)
		} else {
			hosts = append(hosts, name)
		}
	}
	server, err := issue(authority, stdx509.ExtKeyUsageServerAuth, x509.IPAddresses(addresses), x509.DNSNames(hosts))
	if err != nil {
		return nil, err
	}
	issued := &secrets.APICertsSpec{AcceptedCAs: []*x509.PEMEncodedCertificate{{Crt: pair.Crt}}, Server: server}
	if controlPlane {
		issued.Client, err = issue(authority, stdx509.ExtKeyUsageClientAuth, x509.Organization(string(role.Impersonator)))
	}
	return issued, err
}

func issue(authority *x509.CertificateAuthority, usage stdx509.ExtKeyUsage, options ...x509.Option) (*x509.PEMEncodedCertificateAndKey, error) {
	pair, err := x509.NewKeyPair(authority, append(options,
		x509.NotAfter(time.Now().Add(x509.DefaultCertificateValidityDuration)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{usage}))...)
	if err != nil {
		return nil, err
	}
	return x509.NewCertificateAndKeyFromKeyPair(pair), nil
}

// awaitServed waits until the server at an address presents this certificate; its process must not end meanwhile.
func awaitServed(address string, certificate *x509.PEMEncodedCertificateAndKey, ended <-chan struct{}) error {
	wanted, err := certificate.GetCert()
	if err != nil {
		return err
	}
	deadline := time.After(servedSeconds * time.Second)
	for {
		presented, err := presentedAt(address)
		if err == nil && bytes.Equal(presented, wanted.Raw) {
			return nil
		}
		select {
		case <-ended:
			return errors.New("apid has ended")
		case <-deadline:
			return fmt.Errorf("apid does not present its certificate at %s: %w", address, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func presentedAt(address string) ([]byte, error) {
	// it is only compared
	connection, err := stdtls.Dial("tcp", address, &stdtls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		return nil, err
	}
	defer connection.Close() //nolint:errcheck // nothing was sent
	return connection.ConnectionState().PeerCertificates[0].Raw, nil
}

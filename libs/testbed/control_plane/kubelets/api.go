package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	jsonType       = "application/json"
	mergeType      = "application/merge-patch+json"
	strategicType  = "application/strategic-merge-patch+json"
	requestTimeout = 60 * time.Second
	attempts       = 5 // nodeStatusUpdateRetry of the kubelet
	maxErrorBytes  = 300
)

// API is a client with one identity. Requests share HTTP/2 connections, as in a client-go process.
type API struct {
	server string
	client *http.Client
}

func loadCredentials(authority, certificate, key string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", authority)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: pool}, nil
}

func newAPI(server string, credentials *tls.Config) *API {
	transport := &http.Transport{
		TLSClientConfig: credentials.Clone(), ForceAttemptHTTP2: true, DisableCompression: true,
	}
	return &API{server: server, client: &http.Client{Transport: transport}}
}

// Rejected is a request that the API server rejected.
type Rejected struct {
	what   string
	status int
	text   string
}

func (r *Rejected) Error() string { return fmt.Sprintf("%s: %d %s", r.what, r.status, r.text) }

// do sends one request, as a node or else as the admin, and returns the status and the body.
func (a *API) do(ctx context.Context, method, path, node, contentType string, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, a.server+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", jsonType)
	if node != "" {
		request.Header.Set("Impersonate-User", "system:node:"+node)
		request.Header["Impersonate-Group"] = []string{"system:nodes", "system:authenticated"}
	}
	response, err := a.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// must sends a request until it gets the wanted status, with as many attempts as a kubelet. It retries
// "too many requests", conflicts of patches and server errors; other responses are final.
func (a *API) must(ctx context.Context, wanted int, method, path, node, contentType string, body []byte) error {
	_, err := a.sent(ctx, wanted, method, path, node, contentType, body)
	return err
}

// sent is must, and returns the response.
func (a *API) sent(
	ctx context.Context, wanted int, method, path, node, contentType string, body []byte,
) ([]byte, error) {
	for attempt := 1; ; attempt++ {
		status, text, err := a.do(ctx, method, path, node, contentType, body)
		if err != nil {
			return nil, err
		}
		if status == wanted {
			return text, nil
		}
		passing := status == http.StatusTooManyRequests || status == http.StatusConflict && method == http.MethodPatch ||
			status >= http.StatusInternalServerError
		if !passing || attempt == attempts {
			return nil, &Rejected{method + " " + path, status, words(text)}
		}
		select {
		case <-time.After(time.Duration(attempt) * 50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// gone deletes an object as the admin; a missing object is no error.
func (a *API) gone(ctx context.Context, path string) error {
	err := a.must(ctx, http.StatusOK, http.MethodDelete, path, "", jsonType, nil)
	if isStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

func isStatus(err error, status int) bool {
	var rejected *Rejected
	return errors.As(err, &rejected) && rejected.status == status
}

// words returns the message of a Status object, or the beginning of another body.
func words(text []byte) string {
	var status struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &status) == nil && status.Message != "" {
		return status.Message
	}
	return string(text[:min(len(text), maxErrorBytes)])
}

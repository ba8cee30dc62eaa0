package fencepost

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// A target is an address of a server for gRPC.
type target struct {
	text      string
	encrypted bool
	local     bool // Nobody can eavesdrop on a connection to it.
}

// parseTarget reads host:port, http://host:port, https://host:port or unix:/path.
func parseTarget(text string, encrypted bool) (target, error) {
	if strings.HasPrefix(text, "unix:") {
		return target{text: text, local: true}, nil
	}
	rest, isEncrypted := strings.CutPrefix(text, "https://")
	if !isEncrypted {
		var isPlain bool
		rest, isPlain = strings.CutPrefix(text, "http://")
		isEncrypted = encrypted && !isPlain
	}
	rest = strings.TrimSuffix(rest, "/")
	host, port, err := net.SplitHostPort(rest)
	if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || host == "" || strings.Contains(host, "/") {
		return target{}, fmt.Errorf("fencepost: address %q: want host:port, https://host:port or unix:/path", text)
	}
	return target{rest, isEncrypted, host == "localhost" || net.ParseIP(host).IsLoopback()}, nil
}

// dialOptions are those that carry the credentials. They are read again for each connection, so that files can be
// replaced.
func (c *config) dialOptions(t target) ([]grpc.DialOption, error) {
	transport := insecure.NewCredentials()
	if t.encrypted {
		settings, err := c.readTLS()
		if err != nil {
			return nil, err
		}
		transport = credentials.NewTLS(settings)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	if c.bearer == "" {
		return options, nil
	}
	if !t.encrypted && !t.local {
		return nil, fmt.Errorf("fencepost: a bearer token is not sent to %s unencrypted: prefix the address with https://", t.text)
	}
	token := &bearerFile{path: c.bearer}
	if _, err := token.GetRequestMetadata(context.Background()); err != nil {
		return nil, err
	}
	return append(options, grpc.WithPerRPCCredentials(token)), nil
}

func (c *config) readTLS() (*tls.Config, error) {
	settings := &tls.Config{}
	if c.tls != nil {
		settings = c.tls.Clone()
	}
	if c.caFile != "" {
		pem, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, fmt.Errorf("fencepost: CA file: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("fencepost: CA file: %s contains no certificate", c.caFile)
		}
	}
	if c.certFile != "" || c.keyFile != "" {
		pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, fmt.Errorf("fencepost: certificate and key file: %w", err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return settings, nil
}

// bearerFile reads the token again for each call. While the file cannot be read or is empty, because it is being
// replaced, the token before stays in use.
type bearerFile struct {
	path string
	mu   sync.Mutex
	last string
}

func (b *bearerFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	text, err := os.ReadFile(b.path)
	b.mu.Lock()
	defer b.mu.Unlock()
	if token := strings.TrimSpace(string(text)); token != "" {
		b.last = token
	} else if b.last == "" && err == nil {
		err = fmt.Errorf("%s contains no bearer token", b.path)
	}
	if b.last == "" {
		return nil, fmt.Errorf("fencepost: bearer file: %w", err)
	}
	return map[string]string{"authorization": "Bearer " + b.last}, nil
}

func (b *bearerFile) RequireTransportSecurity() bool { return false } // dialOptions has checked it.

package fencepost

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
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
	if err != nil || host == "" || port == "" || strings.Contains(host, "/") {
		return target{}, fmt.Errorf("fencepost: address %q: want host:port, https://host:port or unix:/path", text)
	}
	return target{rest, isEncrypted, host == "localhost" || net.ParseIP(host).IsLoopback()}, nil
}

// dialOptions are those that carry the credentials.
func (c *config) dialOptions(t target) ([]grpc.DialOption, error) {
	transport := insecure.NewCredentials()
	if t.encrypted {
		files := &tlsFiles{credentials.NewTLS(c.tls), c}
		if _, err := files.load(); err != nil {
			return nil, err
		}
		transport = files
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

// tlsFiles reads the certificates again for each connection, so that they can be replaced.
type tlsFiles struct {
	credentials.TransportCredentials
	*config
}

func (f *tlsFiles) Clone() credentials.TransportCredentials { return f }

func (f *tlsFiles) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := f.load()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

func (f *tlsFiles) load() (*tls.Config, error) {
	config := &tls.Config{}
	if f.tls != nil {
		config = f.tls.Clone()
	}
	if f.caFile != "" {
		pem, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, fmt.Errorf("fencepost: CA file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("fencepost: CA file: %s contains no certificate", f.caFile)
		}
	}
	if f.certFile != "" || f.keyFile != "" {
		pair, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
		if err != nil {
			return nil, fmt.Errorf("fencepost: certificate and key file: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
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

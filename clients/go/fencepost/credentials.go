package fencepost

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
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

// parse reads addresses, and checks that the credentials can be read and sent to them.
func (c *config) parse(addresses []string) (targets []target, err error) {
	for _, address := range addresses {
		t, err := parseTarget(strings.TrimSpace(address), c.tls != nil || c.caFile != "" || c.certFile != "")
		if err != nil {
			return nil, err
		}
		if c.token != nil && !t.encrypted && !t.local {
			return nil, fmt.Errorf("fencepost: a bearer token is not sent to %s unencrypted: prefix the address with https://", t.text)
		}
		if t.encrypted {
			if _, err := c.readTLS(); err != nil {
				return nil, err
			}
		}
		targets = append(targets, t)
	}
	if c.bearer != nil {
		_, err = c.bearer.read(context.Background())
	}
	return targets, err
}

// withToken adds the bearer token to a call, and tells it.
func (c *config) withToken(ctx context.Context, token *string) (context.Context, error) {
	if c.token == nil {
		return ctx, nil
	}
	limited, cancel := context.WithTimeout(ctx, tokenLimit)
	defer cancel()
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go c.guard(func() {
		a := answer{err: errors.New("its function panicked")}
		defer func() { answers <- a }()
		a.text, a.err = c.token(limited)
	})
	var a answer
	select {
	case a = <-answers:
	case <-limited.Done():
		a.err = limited.Err()
	}
	if a.err != nil { // The file is being replaced, or what gives the token is away.
		return nil, &Error{Code: codes.Unavailable, Message: fmt.Sprintf("bearer token: %v", a.err), err: a.err}
	}
	*token = a.text
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+a.text), nil
}

// guard runs code of the user, whose panic ends nothing.
func (c *config) guard(f func()) {
	defer func() {
		if panicked := recover(); panicked != nil {
			go func() {
				defer func() { _ = recover() }() // The logger may be what panics.
				c.log.Error("fencepost: a callback panicked", "panic", panicked)
			}()
		}
	}()
	f()
}

// connect opens a connection of its own. The credentials are read again, so that files can be replaced.
func (c *config) connect(t target) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if t.encrypted {
		settings, err := c.readTLS()
		if err != nil { // A file is being replaced.
			return nil, &Error{Code: codes.Unavailable, Message: err.Error(), err: err}
		}
		transport = credentials.NewTLS(settings)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport), grpc.WithNoProxy(), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16 << 20)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}
	return grpc.NewClient(t.text, append(options, c.dial...)...)
}

// describe says which side speaks what, and which certificate is refused, where that is why there is no connection.
func (e *Error) describe(ctx context.Context, t target) {
	problem := ""
	switch text := e.Message; {
	case e.Reason != "" || e.Code != codes.Unavailable:
	case t.encrypted && strings.Contains(text, "first record does not look like a TLS handshake"):
		problem = t.text + " speaks no TLS, and its address or the settings ask for it"
	case t.encrypted && (strings.Contains(text, "x509: ") || strings.Contains(text, "tls: failed to verify")):
		problem = "the certificate of " + t.text + " is refused"
	case t.encrypted && strings.Contains(text, "remote error: tls: "):
		problem = t.text + " refuses the certificate of the client"
	case !t.encrypted && !strings.HasPrefix(t.text, "unix:") && strings.Contains(text, "server preface"):
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // It is asked what it speaks, and sent nothing.
		if conn, err := dialer.DialContext(ctx, "tcp", t.text); err == nil {
			_ = conn.Close()
			problem = t.text + " speaks TLS, and its address does not begin with https://"
		}
	}
	if problem != "" {
		e.Reason, e.Message = "TLS", problem+": "+e.Message
	}
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

// bearerFile reads the token again for each connection. While the file cannot be read or is empty, because it is being
// replaced, the token before stays in use.
type bearerFile struct {
	path string
	mu   sync.Mutex
	last string
}

func (b *bearerFile) read(context.Context) (string, error) {
	text, err := os.ReadFile(b.path)
	b.mu.Lock()
	defer b.mu.Unlock()
	if token := strings.TrimSpace(string(text)); token != "" {
		b.last = token
	} else if b.last == "" && err == nil {
		err = fmt.Errorf("%s contains no bearer token", b.path)
	}
	if b.last == "" {
		return "", fmt.Errorf("fencepost: bearer file: %w", err)
	}
	return b.last, nil
}

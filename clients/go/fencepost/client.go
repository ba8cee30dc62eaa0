package fencepost

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

const (
	callLimit    = 10 * time.Second // For a call with its repetitions.
	attemptLimit = 5 * time.Second  // For one attempt of a call that does not wait.
	releaseLimit = 5 * time.Second  // For a release with its repetitions, and for Close.
)

// Client takes locks of one namespace. Its methods may be called from several goroutines at once.
type Client struct {
	config
	pool   *pool
	keeper keeper
	ctx    context.Context // Of what runs in the background; ends with Close.
	cancel context.CancelCauseFunc
	work   sync.WaitGroup
	mu     sync.Mutex // Held while work begins, and when the client closes.
	once   sync.Once
	closed error // What Close returns.
}

type config struct {
	namespace, owner                  string
	tls                               *tls.Config
	caFile, certFile, keyFile, bearer string
	log                               *slog.Logger
	dial                              []grpc.DialOption
}

// Option is a setting of a client.
type Option func(*config)

// WithNamespace sets the namespace of all locks; without it, "default".
func WithNamespace(namespace string) Option { return func(c *config) { c.namespace = namespace } }

// WithOwner sets the label that operators see, 1 to 256 bytes; without it, the host's name and the process id.
func WithOwner(owner string) Option { return func(c *config) { c.owner = owner } }

// WithTLS encrypts the connections to all addresses of the form host:port. Without it and [WithTLSFiles], those of the
// form https://host:port are encrypted, and trust the CA certificates of the system.
func WithTLS(settings *tls.Config) Option { return func(c *config) { c.tls = settings.Clone() } }

// WithTLSFiles is [WithTLS] with PEM files, which are read again for each connection: the CA certificates of the
// server, the client's certificate and its key. Each may be empty, the last two together.
func WithTLSFiles(ca, cert, key string) Option {
	return func(c *config) { c.caFile, c.certFile, c.keyFile = ca, cert, key }
}

// WithBearerFile sends the bearer token in this file with each call. The file is read again each time.
func WithBearerFile(path string) Option { return func(c *config) { c.bearer = path } }

// WithLogger sets where losses of leases and replaced connections are logged; without it, [slog.Default].
func WithLogger(log *slog.Logger) Option { return func(c *config) { c.log = log } }

// WithDialOptions adds options to the gRPC connections, such as interceptors.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(c *config) { c.dial = append(c.dial, options...) }
}

// New returns a client of the servers at the addresses, which serve the same store, separated by commas: host:port,
// https://host:port or unix:/path. It uses one of them until it fails, then the next one.
//
// New reads the credentials, but connects with the first call. The end of ctx does not end the client; only its values
// are used, for what runs in the background.
func New(ctx context.Context, addresses string, options ...Option) (*Client, error) {
	host, _ := os.Hostname()
	c := &Client{config: config{
		namespace: "default", owner: fmt.Sprintf("%s-%d", cmp.Or(host, "go"), os.Getpid()), log: slog.Default(),
	}}
	for _, option := range options {
		option(&c.config)
	}
	var err error
	if c.pool, err = newPool(&c.config, strings.Split(addresses, ",")); err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	c.keeper.client = c
	return c, nil
}

// NewFromEnv is [New] with the environment variables of the command line: FENCEPOST_ADDR (127.0.0.1:50051 without it),
// FENCEPOST_NAMESPACE, FENCEPOST_OWNER, FENCEPOST_CA_FILE, FENCEPOST_CERT_FILE, FENCEPOST_KEY_FILE and
// FENCEPOST_BEARER_FILE. The options come after them.
func NewFromEnv(ctx context.Context, options ...Option) (*Client, error) {
	fromEnv := func(c *config) {
		c.namespace = cmp.Or(os.Getenv("FENCEPOST_NAMESPACE"), c.namespace)
		c.owner = cmp.Or(os.Getenv("FENCEPOST_OWNER"), c.owner)
		c.caFile, c.certFile = os.Getenv("FENCEPOST_CA_FILE"), os.Getenv("FENCEPOST_CERT_FILE")
		c.keyFile, c.bearer = os.Getenv("FENCEPOST_KEY_FILE"), os.Getenv("FENCEPOST_BEARER_FILE")
	}
	address := cmp.Or(os.Getenv("FENCEPOST_ADDR"), "127.0.0.1:50051")
	return New(ctx, address, append([]Option{fromEnv}, options...)...)
}

// Close ends calls that wait with [ErrClosed], releases all held locks and closes the connections, within 5 s or until
// ctx ends. A ctx that has already ended does not keep it from releasing. Nothing of the client runs after it.
// A second Close returns the result of the first one.
//
// An error is a release that was not confirmed: the lease then ends with its TTL.
func (c *Client) Close(ctx context.Context) error {
	c.once.Do(func() {
		c.mu.Lock()
		c.cancel(ErrClosed)
		c.mu.Unlock()
		ctx, cancel := bounded(ctx, releaseLimit)
		defer cancel()
		c.closed = releaseAll(ctx, c.keeper.all(), ErrClosed)
		ended := make(chan struct{})
		go func() { c.work.Wait(); close(ended) }()
		select { // What was abandoned is undone.
		case <-ended:
		case <-ctx.Done():
		}
		c.pool.close()
		<-ended
	})
	return c.closed
}

// bounded returns a context that ends after the limit, or with ctx unless that has already ended.
func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// begin returns false if the client is closed. Otherwise Close waits for c.work.Done.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.work.Add(1)
	return true
}

// until returns a context that also ends with the client.
func (c *Client) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(context.Canceled) }
}

// ended is the error of a call whose context has ended: that of the caller's context, unchanged, or ErrClosed.
func (c *Client) ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Cause(c.ctx)
}

// call repeats a call until a server answers, or the limit has passed.
func (c *Client) call(ctx context.Context, limit time.Duration, method string, req, resp proto.Message) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for n := 1; ; n++ {
		err := c.attempt(bounded, &c.pool.calls, limit/2, method, req, resp)
		var failed *Error
		if err == nil || !errors.As(err, &failed) || !failed.retryable() {
			return err
		}
		if !sleep(bounded, pause(n, failed)) {
			return cmp.Or(ctx.Err(), err)
		}
	}
}

// attempt makes a call once.
func (c *Client) attempt(ctx context.Context, l *link, limit time.Duration, method string, req, resp proto.Message) error {
	conn, err := c.pool.use(l)
	if err != nil {
		return err
	}
	defer func() { c.pool.done(conn, err == nil) }()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var trailer metadata.MD
	if err = conn.Invoke(limited, method, req, resp, grpc.Trailer(&trailer)); err == nil {
		return nil
	}
	return c.failed(ctx, conn, err, trailer)
}

// failed returns the error of a call, and replaces its connection if another one may serve.
func (c *Client) failed(ctx context.Context, conn *conn, err error, trailer metadata.MD) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	failed := newError(err, trailer)
	if failed.unanswered() || failed.busy() && len(c.pool.targets) > 1 {
		c.pool.replace(conn, failed)
	}
	return failed
}

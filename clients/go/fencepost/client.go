package fencepost

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

// Client takes locks of one namespace. Its methods may be called from several goroutines at once.
type Client struct {
	session *session
	once    sync.Once
	closed  error // What Close returns.
}

type config struct {
	namespace, owner          string
	tls                       *tls.Config
	caFile, certFile, keyFile string
	token                     func(context.Context) (string, error) // nil: none is sent.
	bearer                    *bearerFile                           // That token reads, if it does.
	log                       *slog.Logger
	dial                      []grpc.DialOption
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

// WithBearerFile sends the bearer token in this file with each connection. It may be replaced at any time: the file is
// read again when the token is refused.
func WithBearerFile(path string) Option {
	return func(c *config) {
		if c.token, c.bearer = nil, nil; path != "" {
			c.bearer = &bearerFile{path: path}
			c.token = c.bearer.read
		}
	}
}

// WithBearerToken sends the bearer token that f returns. f is called for each connection, and again when a token is refused;
// its context ends after 4 s and with the client, which then does not wait for it any more.
func WithBearerToken(f func(ctx context.Context) (string, error)) Option {
	return func(c *config) { c.token, c.bearer = f, nil }
}

// WithLogger sets where losses of leases and replaced connections are logged; without it, [slog.Default].
func WithLogger(log *slog.Logger) Option {
	return func(c *config) { c.log = cmp.Or(log, slog.Default()) }
}

// WithDialOptions adds options to the gRPC connections, such as interceptors of streams. They come after those of the
// client, which obeys no proxy variable of the environment.
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
	c := &config{namespace: "default", owner: fmt.Sprintf("%s-%d", cmp.Or(host, "go"), os.Getpid()), log: slog.Default()}
	for _, option := range options {
		if option != nil {
			option(c)
		}
	}
	c.dial = slices.DeleteFunc(c.dial, func(option grpc.DialOption) bool { return option == nil })
	targets, err := c.parse(strings.Split(addresses, ","))
	if err != nil {
		return nil, err
	}
	return &Client{session: newSession(context.WithoutCancel(ctx), c, targets)}, nil
}

// NewFromEnv is [New] with the environment variables of the command line: FENCEPOST_ADDR (127.0.0.1:50051 without it),
// FENCEPOST_NAMESPACE, FENCEPOST_OWNER, FENCEPOST_CA_FILE, FENCEPOST_CERT_FILE, FENCEPOST_KEY_FILE and
// FENCEPOST_BEARER_FILE. The options come after them.
func NewFromEnv(ctx context.Context, options ...Option) (*Client, error) {
	fromEnv := func(c *config) {
		c.namespace = cmp.Or(os.Getenv("FENCEPOST_NAMESPACE"), c.namespace)
		c.owner = cmp.Or(os.Getenv("FENCEPOST_OWNER"), c.owner)
		c.caFile, c.certFile = os.Getenv("FENCEPOST_CA_FILE"), os.Getenv("FENCEPOST_CERT_FILE")
		c.keyFile = os.Getenv("FENCEPOST_KEY_FILE")
		WithBearerFile(os.Getenv("FENCEPOST_BEARER_FILE"))(c)
	}
	address := cmp.Or(os.Getenv("FENCEPOST_ADDR"), "127.0.0.1:50051")
	return New(ctx, address, append([]Option{fromEnv}, options...)...)
}

// Close ends calls that wait with [ErrClosed], releases all held locks and closes the connections, within 5 s or until
// ctx ends. A ctx that has already ended does not keep it from releasing. Nothing of the client runs after it.
// A second Close returns the result of the first one.
//
// An error is a release that was not confirmed, or an acquire that was given up and may have been granted: the lease then
// ends with its TTL.
func (c *Client) Close(ctx context.Context) error {
	c.once.Do(func() {
		ctx, cancel := bounded(ctx, releaseLimit)
		defer cancel()
		c.closed = c.session.close(ctx)
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

// Get returns the holders and waiters of a lock. It tries for 10 s.
func (c *Client) Get(ctx context.Context, name string) (*pb.LockState, error) {
	get := &pb.SessionCommand_GetLock{GetLock: &pb.GetLockRequest{Namespace: c.session.namespace, Name: name}}
	cmd, err := c.session.do(ctx, calls, &pb.SessionCommand{Command: get})
	if err != nil {
		return nil, err
	}
	state := cmd.result.GetGetLock().GetLock()
	if state == nil {
		return nil, errIncomplete
	}
	return state, nil
}

// CheckToken tells whether a fencing token holds a lock now. It tries for 10 s.
func (c *Client) CheckToken(ctx context.Context, name string, token uint64) (bool, error) {
	check := &pb.SessionCommand_CheckToken{CheckToken: &pb.CheckTokenRequest{Namespace: c.session.namespace, Name: name, FencingToken: token}}
	cmd, err := c.session.do(ctx, calls, &pb.SessionCommand{Command: check})
	if err != nil {
		return false, err
	}
	return cmd.result.GetCheckToken().GetHeld(), nil
}

// ForceRelease takes a lock from the holder with this token, with all its holds. It tries for 10 s, and fails with
// [ErrLeaseLost] if the token is not held.
func (c *Client) ForceRelease(ctx context.Context, name string, token uint64) error {
	req := &pb.ForceReleaseRequest{Namespace: c.session.namespace, Name: name, FencingToken: token}
	return c.call(ctx, pb.AdminService_ForceRelease_FullMethodName, req, &pb.ForceReleaseResponse{})
}

// List yields the locks in use whose names begin with prefix, by name; not a snapshot. It tries for 10 s for each page, and
// ends with the first error.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[*pb.LockSummary, error] {
	return func(yield func(*pb.LockSummary, error) bool) {
		req := &pb.ListLocksRequest{Namespace: c.session.namespace, Prefix: prefix}
		for {
			page := &pb.ListLocksResponse{}
			if err := c.call(ctx, pb.LockService_ListLocks_FullMethodName, req, page); err != nil {
				yield(nil, err)
				return
			}
			for _, lock := range page.GetLocks() {
				if !yield(lock, nil) {
					return
				}
			}
			if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
				return
			}
		}
	}
}

// call makes a call that sessions do not have, on the connection of the stream, until a server answers or 10 s have passed.
func (c *Client) call(ctx context.Context, method string, req, resp proto.Message) error {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	for n := 1; ; n++ {
		err := c.session.invoke(limited, method, req, resp)
		failed, ok := errors.AsType[*Error](err)
		if !ok || !failed.retryable() || !sleep(limited, pause(n, failed)) {
			return cmp.Or(ctx.Err(), err)
		}
	}
}

func (s *session) invoke(ctx context.Context, method string, req, resp proto.Message) error {
	// It cancels nothing, but its result shows that the stream is open.
	check := &pb.SessionCommand{Command: &pb.SessionCommand_Cancel_{Cancel: &pb.SessionCommand_Cancel{}}}
	if _, err := s.do(ctx, unlimited, check); err != nil {
		return err
	}
	s.mu.Lock()
	var conn *grpc.ClientConn
	if s.stream != nil {
		conn = s.stream.conn
	}
	unanswered := s.unanswered()
	s.mu.Unlock()
	if conn == nil {
		return unanswered
	}
	var token string
	ctx, err := s.withToken(ctx, &token)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	var trailer metadata.MD
	if err := conn.Invoke(ctx, method, req, resp, grpc.Trailer(&trailer)); err != nil {
		return errorOfCall(err, trailer)
	}
	return nil
}

package fencepost

import (
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
)

// waitsPerConn bounds the waits on one connection, because proxies allow about 100 streams on it. A wait has two streams
// while it is handed over to its next call.
const waitsPerConn = 48

// pool has the connections of a client, each to one of its addresses.
type pool struct {
	config  *config
	targets []target

	mu     sync.Mutex
	next   int     // The address of new connections.
	waits  []*link // For calls that wait.
	calls  link    // For the others, so that no wait uses up their streams.
	open   map[*conn]struct{}
	closed bool
}

// link is a connection that is replaced when it fails.
type link struct {
	conn *conn
	load int
}

type conn struct {
	*grpc.ClientConn
	link   *link
	at     int
	users  int
	worked bool
}

func newPool(c *config, addresses []string) (*pool, error) {
	p := &pool{config: c, open: map[*conn]struct{}{}}
	for _, address := range addresses {
		t, err := parseTarget(strings.TrimSpace(address), c.tls != nil || c.caFile != "" || c.certFile != "")
		if err != nil {
			return nil, err
		}
		if _, err := c.dialOptions(t); err != nil {
			return nil, err
		}
		p.targets = append(p.targets, t)
	}
	return p, nil
}

// waitLink returns the link for a wait. It has room until it is left.
func (p *pool) waitLink() *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.waits {
		if l.load < waitsPerConn {
			l.load++
			return l
		}
	}
	p.waits = append(p.waits, &link{load: 1})
	return p.waits[len(p.waits)-1]
}

func (p *pool) leave(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.load--
}

// use returns the connection of a link, for one call.
func (p *pool) use(l *link) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if l.conn == nil {
		grpcConn, err := p.connect(p.targets[p.next])
		if err != nil {
			return nil, err
		}
		l.conn = &conn{ClientConn: grpcConn, link: l, at: p.next}
		p.open[l.conn] = struct{}{}
	}
	l.conn.users++
	return l.conn, nil
}

func (p *pool) connect(t target) (*grpc.ClientConn, error) {
	options, err := p.config.dialOptions(t)
	if err != nil { // A file is being replaced.
		return nil, &Error{Code: codes.Unavailable, Message: err.Error(), err: err}
	}
	options = append(options,
		grpc.WithIdleTimeout(time.Minute),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	return grpc.NewClient(t.text, append(options, p.config.dial...)...)
}

// done ends the use of a connection by one call. One that was replaced is closed after its last call.
func (p *pool) done(c *conn, worked bool) {
	p.mu.Lock()
	c.users--
	c.worked = c.worked || worked
	_, isOpen := p.open[c]
	ends := isOpen && c.users == 0 && c.link.conn != c
	if ends {
		delete(p.open, c)
	}
	p.mu.Unlock()
	if ends {
		_ = c.Close()
	}
}

// replace gives the link of a failed connection a new one, to the next address.
func (p *pool) replace(c *conn, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// One that is being opened to the only address has a time limit of its own.
	if c.link.conn != c || p.closed || len(p.targets) == 1 && c.GetState() == connectivity.Connecting {
		return
	}
	c.link.conn = nil
	if c.at == p.next {
		p.next = (p.next + 1) % len(p.targets)
	}
	if c.worked || c.at != p.next {
		// In a goroutine, because a log handler is the user's code.
		go p.config.log.Warn("fencepost: connection replaced", "from", p.targets[c.at].text, "to", p.targets[p.next].text, "error", why)
	}
}

func (p *pool) close() {
	p.mu.Lock()
	open := p.open
	p.closed, p.open = true, nil
	p.mu.Unlock()
	for c := range open {
		_ = c.Close()
	}
}

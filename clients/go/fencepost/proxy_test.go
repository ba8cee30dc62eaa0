package fencepost_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy passes connections on to a server.
type proxy struct {
	addr   string
	server string
	mu     sync.Mutex
	delay  time.Duration // Of what the server sends.
	all    []*path
	hangs  bool // New connections are silent too.
}

// path is a connection, and whether nothing is passed on in each direction.
type path struct {
	there, back atomic.Bool
	client      net.Conn
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	p := &proxy{addr: listener.Addr().String(), server: server}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	way := &path{client: client}
	way.there.Store(p.hangs)
	way.back.Store(p.hangs)
	p.all = append(p.all, way)
	delay := p.delay
	p.mu.Unlock()
	go pass(client, server, &way.there, 0)
	pass(server, client, &way.back, delay)
}

func pass(from, to net.Conn, silent *atomic.Bool, delay time.Duration) {
	type chunk struct {
		due  time.Time
		data []byte
	}
	chunks := make(chan chunk, 1000)
	go func() {
		defer to.Close()
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			if !silent.Load() {
				_, _ = to.Write(c.data)
			}
		}
	}()
	defer close(chunks)
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		chunks <- chunk{time.Now().Add(delay), buffer[:n]}
	}
}

// silence keeps the connections so far, and passes nothing on.
func (p *proxy) silence() {
	p.deafen()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, way := range p.all {
		way.there.Store(true)
	}
}

// deafen passes nothing of the server on over the connections so far.
func (p *proxy) deafen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, way := range p.all {
		way.back.Store(true)
	}
}

// reset breaks the connections off.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, way := range p.all {
		_ = way.client.Close()
	}
	p.all = nil
}

// hang makes new connections silent too.
func (p *proxy) hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hangs = true
}

// slow delays what the server sends over new connections.
func (p *proxy) slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

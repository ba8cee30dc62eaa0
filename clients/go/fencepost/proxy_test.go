package fencepost_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy passes connections on to a server.
type proxy struct {
	addr   string
	server string
	mu     sync.Mutex
	all    []*atomic.Bool // Whether each connection is silent.
	hangs  bool           // New connections are silent too.
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
			p.mu.Lock()
			silent := new(atomic.Bool)
			silent.Store(p.hangs)
			p.all = append(p.all, silent)
			p.mu.Unlock()
			go p.serve(client, silent)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn, silent *atomic.Bool) {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	pass := func(from, to net.Conn) {
		defer from.Close()
		defer to.Close()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if !silent.Load() {
				if _, err := to.Write(buffer[:n]); err != nil {
					return
				}
			}
		}
	}
	go pass(client, server)
	pass(server, client)
}

// silence keeps the connections so far, and passes nothing on.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, silent := range p.all {
		silent.Store(true)
	}
}

// hang does the same with new connections.
func (p *proxy) hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hangs = true
}

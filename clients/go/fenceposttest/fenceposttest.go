// Package fenceposttest starts a Fencepost server for tests.
//
//	func TestReport(t *testing.T) {
//		client := fenceposttest.Start(t).Client(t)
//		...
//	}
package fenceposttest

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/clients/go/fencepost"
)

// startLimit is how long a server may take to listen.
const startLimit = 30 * time.Second

// Server is a running server that keeps its locks in memory.
type Server struct {
	// Addr is its address, 127.0.0.1 and a port, which stays the same after a restart.
	Addr string

	args   []string
	cmd    *exec.Cmd
	output *output
	ended  chan struct{}
}

// Start starts `fencepost serve --memory` on a free port of the loopback address and waits until it listens. The
// binary is that of the environment variable FENCEPOST_BIN, else the fencepost of the PATH. More arguments of `serve`
// may follow. The server is killed when the test ends, which fails if there is no binary or it does not listen.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := &Server{args: args}
	s.start(tb, "127.0.0.1:0")
	tb.Cleanup(s.Kill)
	return s
}

// Client returns a client of the server, with the test's name as its owner. It is closed when the test ends.
func (s *Server) Client(tb testing.TB, options ...fencepost.Option) *fencepost.Client {
	tb.Helper()
	client, err := fencepost.New(tb.Context(), s.Addr, append([]fencepost.Option{fencepost.WithOwner(tb.Name())}, options...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			tb.Log("close:", err)
		}
	})
	return client
}

// Kill ends the server at once, as a crash does. Its locks are lost.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// Restart kills the server, and starts one at its address that knows none of its locks.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Kill()
	s.start(tb, s.Addr)
}

// Signal sends a signal such as [syscall.SIGSTOP] to the server.
func (s *Server) Signal(tb testing.TB, signal syscall.Signal) {
	tb.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		tb.Fatal(err)
	}
}

func (s *Server) start(tb testing.TB, addr string) {
	tb.Helper()
	ready := filepath.Join(tb.TempDir(), "ready")
	s.output = &output{}
	s.cmd = exec.Command(cmp.Or(os.Getenv("FENCEPOST_BIN"), "fencepost"),
		append([]string{"serve", "--memory", "--listen", addr, "--ready-file", ready}, s.args...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	if err := s.cmd.Start(); err != nil {
		tb.Fatalf("fenceposttest: %v (set FENCEPOST_BIN, or put fencepost into the PATH)", err)
	}
	cmd, ended := s.cmd, make(chan struct{})
	s.ended = ended
	go func() { _ = cmd.Wait(); close(ended) }()
	for deadline := time.Now().Add(startLimit); ; time.Sleep(5 * time.Millisecond) {
		if text, _ := os.ReadFile(ready); strings.HasSuffix(string(text), "\n") {
			s.Addr = strings.TrimSpace(string(text))
			return
		}
		select {
		case <-ended:
			tb.Fatalf("fenceposttest: the server has ended:\n%s", s.output)
		default:
		}
		if time.Now().After(deadline) {
			s.Kill()
			tb.Fatalf("fenceposttest: the server does not listen:\n%s", s.output)
		}
	}
}

// output keeps what a server writes.
type output struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes.String()
}

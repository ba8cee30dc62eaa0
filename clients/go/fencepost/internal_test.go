package fencepost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

func TestAddressesAreReadAsTheCommandLineDoes(t *testing.T) {
	for text, want := range map[string]target{
		"127.0.0.1:1":          {"127.0.0.1:1", false, true},
		"localhost:1":          {"localhost:1", false, true},
		"[::1]:1":              {"[::1]:1", false, true},
		"a.example:1":          {"a.example:1", false, false},
		"http://a.example:1/":  {"a.example:1", false, false},
		"https://a.example:1":  {"a.example:1", true, false},
		"https://127.0.0.1:1/": {"127.0.0.1:1", true, true},
		"unix:/run/fencepost":  {"unix:/run/fencepost", false, true},
	} {
		if got, err := parseTarget(text, false); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if client, err := New(t.Context(), "a:1, b:1"); err != nil || client.pool.targets[1].text != "b:1" {
		t.Errorf("%v, %v", client, err)
	}
	for _, text := range []string{"", "a", "a:", ":1", "https://a", "https://unix:/s", "ftp://a:1"} {
		if got, err := parseTarget(text, false); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got, _ := parseTarget("a:1", true); !got.encrypted {
		t.Error("not encrypted with TLS")
	}
}

func TestABearerTokenIsReadAgainAndNeverSentInTheClear(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := &bearerFile{path: path}
	for text, want := range map[string]string{"one\n": "one", "two": "two"} {
		write(text)
		for _, now := range []string{text, ""} { // While it is empty, the token before stays in use.
			write(now)
			if got, err := file.GetRequestMetadata(t.Context()); err != nil || got["authorization"] != "Bearer "+want {
				t.Error(got, err)
			}
		}
	}
	if _, err := New(t.Context(), "127.0.0.1:1", WithBearerFile(path)); err == nil {
		t.Error("an empty file is taken")
	}
	write("one")
	for address, ok := range map[string]bool{"127.0.0.1:1": true, "unix:/s": true, "https://a:1": true, "a:1": false, "127.0.0.1:1,a:1": false} {
		if _, err := New(t.Context(), address, WithBearerFile(path)); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := New(t.Context(), "https://a:1", WithTLSFiles(path, "", "")); err == nil || !strings.Contains(err.Error(), "CA file") {
		t.Error(err)
	}
}

func TestErrorsHaveTheReasonOfTheTrailers(t *testing.T) {
	err := error(newError(status.Error(codes.FailedPrecondition, "gone"), metadata.Pairs("fencepost-reason", "LEASE_LOST", "fencepost-cause", "forced")))
	var failed *Error
	if !errors.As(err, &failed) || failed.Cause != "forced" || !errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrLocked) || failed.retryable() {
		t.Error(err)
	}
	if status.Code(err) != codes.FailedPrecondition {
		t.Error(status.Code(err))
	}
	if errors.Is(newError(status.Error(codes.Unavailable, "away"), nil), context.Canceled) {
		t.Error("an error of the transport is one of a context")
	}
	for n := 1; n < 99; n++ {
		if p := pause(n, nil); p < 100*time.Millisecond || p > 2*time.Second {
			t.Fatal(n, p)
		}
	}
	if p := pause(1, &Error{RetryAfter: time.Minute}); p != time.Minute {
		t.Error(p)
	}
}

func TestTheClockIsReadWhereverALockIsAskedFor(t *testing.T) {
	client, err := New(t.Context(), "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	fresh := func() *Lock {
		lease := &pb.Lease{LeaseId: "id", FencingToken: 7, Ttl: durationpb.New(25 * 24 * time.Hour)}
		return newLock(client, lease, now(), trace.SpanFromContext(t.Context()))
	}
	past := func(l *Lock) { l.end.Store(int64(now())) } // As after a stop of the process, before any timer.
	l := fresh()
	if token, err := l.Check(); token != 7 || err != nil {
		t.Error(token, err)
	}
	past(l)
	if _, err := l.Check(); !errors.Is(err, ErrLeaseLost) {
		t.Error(err)
	}
	l = fresh()
	past(l)
	select {
	case <-l.Done():
	default:
		t.Error("the signal does not read the clock")
	}
	l = fresh()
	ctx, cancel := l.Context(t.Context())
	defer cancel()
	child, cancelChild := context.WithCancel(ctx)
	defer cancelChild()
	if ctx.Err() != nil {
		t.Error(ctx.Err())
	}
	past(l)
	select {
	case <-ctx.Done():
	default:
		t.Error("the signal of the context does not read the clock")
	}
	if ctx.Err() != context.Canceled || !errors.Is(context.Cause(ctx), ErrLeaseLost) {
		t.Error(ctx.Err(), context.Cause(ctx))
	}
	if <-child.Done(); !errors.Is(context.Cause(child), ErrLeaseLost) {
		t.Error(context.Cause(child))
	}
}

func TestWaitsAreSpreadOverConnections(t *testing.T) {
	client, err := New(t.Context(), "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	links := map[*link]int{}
	for range 160 {
		links[client.pool.waitLink()]++
	}
	for l, count := range links {
		if l == &client.pool.calls || count > waitsPerConn {
			t.Error(count)
		}
	}
	if len(links) != 4 {
		t.Error(len(links))
	}
}

func TestStreamsAreSplit(t *testing.T) {
	client, err := New(t.Context(), "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	locks := make([]*Lock, 1600)
	for i := range locks {
		id := fmt.Sprint(i)
		if i >= 1500 {
			id += strings.Repeat("x", 600)
		}
		locks[i] = newLock(client, &pb.Lease{LeaseId: id, Ttl: durationpb.New(time.Minute)}, now(), trace.SpanFromContext(t.Context()))
	}
	client.keeper.add(locks)
	count := 0
	client.keeper.mu.Lock()
	for _, g := range client.keeper.groups {
		bytes := 0
		for id := range g.locks {
			bytes += len(id)
		}
		if count += len(g.locks); len(g.locks) > maxIDs || bytes > maxIDBytes || bytes != g.bytes {
			t.Error(len(g.locks), bytes, g.bytes)
		}
	}
	client.keeper.mu.Unlock()
	if count != len(locks) {
		t.Error(count)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // There is no server to release them.
	defer cancel()
	if err := client.Close(ctx); err == nil {
		t.Error("released")
	}
}

func TestAnAcquireThatEndedInAnOutageOfTheStoreIsUndone(t *testing.T) {
	for reason, want := range map[string]int{"BACKEND_UNAVAILABLE": 3, "NO_QUORUM": 3, "BACKEND_QUARANTINED": 1, "OVERLOADED": 1} {
		client, err := New(t.Context(), "127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		sent := 0
		send := func(context.Context, attempt) ([]*pb.Lease, error) {
			if sent++; sent < 3 { // The store is back for the second undo.
				return nil, &Error{Code: codes.Unavailable, Reason: reason}
			}
			return nil, nil
		}
		if _, _, err := client.acquire(t.Context(), 1, 0, send); err == nil {
			t.Fatal("acquired")
		}
		client.work.Wait()
		if sent != want {
			t.Errorf("%s: %d calls", reason, sent)
		}
	}
}

func TestAnAnswerThatLacksALeaseIsAnErrorAndTheOthersAreReleased(t *testing.T) {
	names := []string{"a", "b"}
	lease := &pb.Lease{LeaseId: "a", Ttl: durationpb.New(time.Minute)}
	var answer proto.Message
	var released []string
	intercept := func(_ context.Context, _ string, req, resp any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		if release, ok := req.(*pb.ReleaseRequest); ok {
			released = append(released, release.GetLeaseId())
			return nil
		}
		proto.Merge(resp.(proto.Message), answer)
		return nil
	}
	for name, c := range map[string]struct {
		answer proto.Message
		call   func(*Client) error
		want   string
	}{
		"one":            {&pb.AcquireResponse{}, func(c *Client) error { return second(c.Acquire(t.Context(), "a")) }, "[]"},
		"one that waits": {&pb.AcquireResponse{}, func(c *Client) error { return second(c.Acquire(t.Context(), "a", Wait(time.Minute))) }, "[]"},
		"no name":        {&pb.AcquireAllResponse{}, func(c *Client) error { return second(c.AcquireAll(t.Context(), nil)) }, "[]"},
		"none of two":    {&pb.AcquireAllResponse{}, func(c *Client) error { return second(c.AcquireAll(t.Context(), names)) }, "[]"},
		"one of two":     {&pb.AcquireAllResponse{Leases: []*pb.Lease{lease}}, func(c *Client) error { return second(c.AcquireAll(t.Context(), names)) }, "[a]"},
		"too many":       {&pb.AcquireAllResponse{Leases: []*pb.Lease{lease, lease, lease}}, func(c *Client) error { return second(c.AcquireAll(t.Context(), names)) }, "[a a a]"},
		"a leader":       {&pb.CampaignResponse{}, func(c *Client) error { return second(c.Campaign(t.Context(), "a")) }, "[]"},
		"the queue":      {&pb.GetLockResponse{}, func(c *Client) error { return second(c.Get(t.Context(), "a")) }, "[]"},
	} {
		client, err := New(t.Context(), "127.0.0.1:1", WithDialOptions(grpc.WithUnaryInterceptor(intercept)))
		if err != nil {
			t.Fatal(err)
		}
		answer, released = c.answer, []string{}
		var failed *Error
		if err := c.call(client); !errors.As(err, &failed) || failed.Reason != "INCOMPLETE" {
			t.Errorf("%s: %v", name, err)
		}
		if err := client.Close(t.Context()); err != nil { // It waits for the releases.
			t.Error(err)
		}
		if fmt.Sprint(released) != c.want {
			t.Errorf("%s: released %v", name, released)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestAWaitThatAStoreGrantsTwiceKeepsOneGrant(t *testing.T) { // One that remembers no requests.
	HandOver(t, 10*time.Millisecond)
	released := make(chan string, 9)
	intercept := func(_ context.Context, _ string, req, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		released <- req.(*pb.ReleaseRequest).GetLeaseId()
		return nil
	}
	client, err := New(t.Context(), "127.0.0.1:1", WithDialOptions(grpc.WithUnaryInterceptor(intercept)))
	if err != nil {
		t.Fatal(err)
	}
	ids, third := make(chan string), make(chan struct{})
	var sent atomic.Int32
	send := func(ctx context.Context, _ attempt) ([]*pb.Lease, error) {
		switch sent.Add(1) {
		case 1:
			<-third
			return []*pb.Lease{{LeaseId: "first"}}, nil
		case 2:
			return []*pb.Lease{{LeaseId: <-ids}}, nil
		case 3:
			close(third)
			fallthrough
		default:
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	leases, _, err := client.acquire(t.Context(), 1, time.Minute, send)
	if err != nil || leases[0].GetLeaseId() != "first" {
		t.Error(leases, err)
	}
	ids <- "second"
	if id := <-released; id != "second" {
		t.Error(id)
	}
	client.work.Wait() // The third one ends.
	if len(released) > 0 {
		t.Error(<-released)
	}
}

func TestALeaseThatIsLostAsUnrenewedIsReleasedOnce(t *testing.T) {
	released := make(chan string, 9)
	intercept := func(_ context.Context, _ string, req, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		released <- req.(*pb.ReleaseRequest).GetLeaseId()
		return status.Error(codes.Unavailable, "away")
	}
	client, err := New(t.Context(), "127.0.0.1:1", WithDialOptions(grpc.WithUnaryInterceptor(intercept)))
	if err != nil {
		t.Fatal(err)
	}
	for _, cause := range []string{"forced", "unrenewed"} {
		l := newLock(client, &pb.Lease{LeaseId: cause, Ttl: durationpb.New(time.Minute)}, now(), trace.SpanFromContext(t.Context()))
		l.lose(&Error{Reason: "LEASE_LOST", Cause: cause})
		l.lose(&Error{Reason: "LEASE_LOST", Cause: cause})
	}
	if err := client.Close(t.Context()); err != nil { // It waits for the release.
		t.Error(err)
	}
	l := newLock(client, &pb.Lease{LeaseId: "closed", Ttl: durationpb.New(time.Minute)}, now(), trace.SpanFromContext(t.Context()))
	l.lose(&Error{Reason: "LEASE_LOST", Cause: "unrenewed"})
	client.work.Wait()
	close(released)
	ids := []string{}
	for id := range released {
		ids = append(ids, id)
	}
	if fmt.Sprint(ids) != "[unrenewed]" {
		t.Error(ids)
	}
}

// HandOver shortens the time after which a wait is handed over.
func HandOver(t *testing.T, after time.Duration) {
	before := handOver
	handOver = after
	t.Cleanup(func() { handOver = before })
}

// names are those of spans and events. What does not fit is dropped, because the global provider cannot be removed.
type names chan string

func (n names) add(name string) {
	select {
	case n <- name:
	default:
	}
}

type spans struct {
	noop.TracerProvider
	seen names
}

type tracer struct {
	noop.Tracer
	seen names
}

type span struct {
	noop.Span
	seen names
}

func (s spans) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{seen: s.seen} }

func (t tracer) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.seen.add(name)
	s := span{seen: t.seen}
	return trace.ContextWithSpan(ctx, s), s
}

func (s span) AddEvent(name string, _ ...trace.EventOption) { s.seen.add(name) }

func TestASpanShowsTheAcquireAndAnEventTheLoss(t *testing.T) {
	client, err := New(t.Context(), "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	provider := spans{seen: make(names, 3)}
	otel.SetTracerProvider(provider)
	ctx, caller := provider.Tracer("").Start(t.Context(), "caller")
	locks, err := client.take(ctx, []string{"a"}, client.request(nil), func(context.Context, attempt) ([]*pb.Lease, error) {
		return []*pb.Lease{{LeaseId: "id", Ttl: durationpb.New(time.Millisecond)}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	<-locks[0].Done()
	if got := []string{<-provider.seen, <-provider.seen, <-provider.seen}; fmt.Sprint(got) != "[caller fencepost.acquire lost]" {
		t.Error(got)
	}
	caller.End()
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

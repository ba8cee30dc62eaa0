package fencepost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
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
	if client, err := New(t.Context(), "a:1, b:1"); err != nil || client.session.targets[1].text != "b:1" {
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
			if got, err := file.read(t.Context()); err != nil || got != want {
				t.Error(got, err)
			}
		}
	}
	if _, err := New(t.Context(), "127.0.0.1:1", WithBearerFile(path)); err == nil {
		t.Error("an empty file is taken")
	}
	write("one")
	callback := func(context.Context) (string, error) { return "", errors.New("it is called for each connection") }
	for address, ok := range map[string]bool{"127.0.0.1:1": true, "unix:/s": true, "https://a:1": true, "a:1": false, "127.0.0.1:1,a:1": false} {
		for _, option := range []Option{WithBearerFile(path), WithBearerToken(callback)} {
			if _, err := New(t.Context(), address, option); (err == nil) != ok {
				t.Errorf("%s: %v", address, err)
			}
		}
	}
	if _, err := New(t.Context(), "https://a:1", WithTLSFiles(path, "", "")); err == nil || !strings.Contains(err.Error(), "CA file") {
		t.Error(err)
	}
}

func TestErrorsHaveTheReasonOfTheTrailers(t *testing.T) {
	err := error(errorOfCall(status.Error(codes.FailedPrecondition, "gone"), metadata.Pairs("fencepost-reason", "LEASE_LOST", "fencepost-cause", "forced")))
	var failed *Error
	if !errors.As(err, &failed) || failed.Cause != "forced" || !errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrLocked) || failed.retryable() {
		t.Error(err)
	}
	if status.Code(err) != codes.FailedPrecondition {
		t.Error(status.Code(err))
	}
	if errors.Is(errorOfCall(status.Error(codes.Unavailable, "away"), nil), context.Canceled) {
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

func TestALossIsToldEarlyAndTheClockIsReadWhereverALockIsAskedFor(t *testing.T) {
	client, err := New(t.Context(), "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	fresh := func() *Lock {
		lease := &pb.Lease{LeaseId: "id", FencingToken: 7, Ttl: durationpb.New(25 * 24 * time.Hour)}
		return newLock(newLease(client.session, lease, now(), trace.SpanFromContext(t.Context())))
	}
	past := func(l *Lock) { l.lease.end.Store(int64(now())) } // As after a stop of the process, before any timer.
	l := fresh()
	if token, err := l.Check(); token != 7 || err != nil {
		t.Error(token, err)
	}
	past(l)
	held := client.session
	held.mu.Lock()
	held.held["id"] = l.lease
	held.mu.Unlock()
	if _, err := l.Check(); !errors.Is(err, ErrLeaseLost) || l.Remaining() != 0 {
		t.Error(err)
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
	held.mu.Lock()
	held.held["id"] = l.lease
	held.mu.Unlock()
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
	for ttl, want := range map[time.Duration][2]time.Duration{
		time.Second:      {5 * time.Millisecond, 50 * time.Millisecond},
		10 * time.Second: {10 * time.Millisecond, 250 * time.Millisecond},
	} {
		sent := now()
		info := &pb.Lease{LeaseId: "id", Ttl: durationpb.New(ttl), Waited: durationpb.New(time.Hour)}
		l := newLease(client.session, info, sent, trace.SpanFromContext(t.Context()))
		end := time.Duration(l.end.Load())
		if sent+time.Hour+ttl-end != want[0] || end-l.tellAt() != want[1] {
			t.Errorf("%s: ends %s early, and is told %s before", ttl, sent+time.Hour+ttl-end, end-l.tellAt())
		}
	}
}

// fake is a server whose sessions answer by a function. It returns nil for commands that it does not answer.
type fake struct {
	pb.UnimplementedLockServiceServer
	answer func(stream int, c *pb.SessionCommand) *pb.SessionEvent
	tokens atomic.Int32 // How many are refused before one is accepted.
	mu     sync.Mutex
	stream int
	seen   []*pb.SessionCommand
	late   []*pb.SessionEvent // To be sent with the next answer.
}

// unanswered is what a fake returns for a command without a result.
var unanswered = &pb.SessionEvent{}

func (f *fake) Session(stream grpc.BidiStreamingServer[pb.SessionRequest, pb.SessionResponse]) error {
	if f.tokens.Add(-1) >= 0 {
		return status.Error(codes.Unauthenticated, "refused")
	}
	f.mu.Lock()
	f.stream++
	number := f.stream
	f.mu.Unlock()
	send := func(e *pb.SessionEvent) error { return stream.Send(&pb.SessionResponse{Events: []*pb.SessionEvent{e}}) }
	if err := send(&pb.SessionEvent{Event: &pb.SessionEvent_Opened_{Opened: &pb.SessionEvent_Opened{}}}); err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, c := range message.GetCommands() {
			f.mu.Lock()
			f.seen = append(f.seen, c)
			f.mu.Unlock()
			event := f.answer(number, c)
			if event == nil && c.GetAcquire() != nil {
				return status.Error(codes.Unavailable, "broken")
			}
			if event == nil {
				event = resultOf(c, nil)
			}
			f.mu.Lock()
			events := append(f.late, event)
			f.late = nil
			f.mu.Unlock()
			for _, event := range events {
				if err := send(event); err != nil {
					return err
				}
			}
		}
	}
}

// count is how many commands match.
func (f *fake) count(matches func(*pb.SessionCommand) bool) (count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.seen {
		if matches(c) {
			count++
		}
	}
	return count
}

func (f *fake) start(t *testing.T, options ...Option) *Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterLockServiceServer(server, f)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client, err := New(t.Context(), listener.Addr().String(), options...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func resultOf(c *pb.SessionCommand, r *pb.SessionEvent_CommandResult) *pb.SessionEvent {
	if r == nil {
		r = &pb.SessionEvent_CommandResult{Outcome: &pb.SessionEvent_CommandResult_Cancel{Cancel: &pb.SessionEvent_Cancelled{}}}
	}
	r.Id = c.GetId()
	return &pb.SessionEvent{Event: &pb.SessionEvent_Result{Result: r}}
}

func grants(ttl time.Duration, ids ...string) *pb.SessionEvent_CommandResult {
	var leases []*pb.Lease
	for _, id := range ids {
		leases = append(leases, &pb.Lease{LeaseId: id, Name: id, Ttl: durationpb.New(ttl)})
	}
	if len(leases) == 1 {
		return &pb.SessionEvent_CommandResult{Outcome: &pb.SessionEvent_CommandResult_Acquire{Acquire: &pb.AcquireResponse{Lease: leases[0]}}}
	}
	return &pb.SessionEvent_CommandResult{Outcome: &pb.SessionEvent_CommandResult_AcquireAll{AcquireAll: &pb.AcquireAllResponse{Leases: leases}}}
}

func TestAnAnswerThatLacksALeaseIsAnErrorAndTheOthersAreReleased(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b"}
	for name, c := range map[string]struct {
		answer *pb.SessionEvent_CommandResult
		call   func(*Client) error
		want   int
	}{
		"one":         {nil, func(c *Client) error { return second(c.Acquire(t.Context(), "a", Wait(time.Minute))) }, 0},
		"none of two": {grants(time.Minute), func(c *Client) error { return second(c.AcquireAll(t.Context(), names)) }, 0},
		"one of two":  {grants(time.Minute, "a"), func(c *Client) error { return second(c.AcquireAll(t.Context(), names)) }, 1},
		"too many":    {grants(time.Minute, "a", "b", "c"), func(c *Client) error { return second(c.AcquireAll(t.Context(), names)) }, 3},
		"a leader":    {nil, func(c *Client) error { return second(c.Campaign(t.Context(), "a")) }, 0},
		"the queue":   {nil, func(c *Client) error { return second(c.Get(t.Context(), "a")) }, 0},
	} {
		f := &fake{answer: func(_ int, command *pb.SessionCommand) *pb.SessionEvent {
			if command.GetAcquire() != nil || command.GetAcquireAll() != nil {
				return resultOf(command, c.answer)
			}
			return nil
		}}
		client := f.start(t)
		var failed *Error
		if err := c.call(client); !errors.As(err, &failed) || failed.Reason != "INCOMPLETE" {
			t.Errorf("%s: %v", name, err)
		}
		if err := client.Close(t.Context()); err != nil { // It waits for the releases.
			t.Error(err)
		}
		if got := f.count(func(c *pb.SessionCommand) bool { return c.GetRelease() != nil }); got != c.want {
			t.Errorf("%s: %d released", name, got)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestALeaseThatIsLostAsUnrenewedIsReleasedOnceAndOneThatTheServerReportsIsNot(t *testing.T) {
	t.Parallel()
	for cause, want := range map[string]int{"unrenewed": 1, "forced": 0} {
		f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
			switch {
			case c.GetAcquire() != nil:
				return resultOf(c, grants(time.Second, "a"))
			case c.GetRenew() != nil && cause == "forced":
				return &pb.SessionEvent{Event: &pb.SessionEvent_Lost_{Lost: &pb.SessionEvent_Lost{LeaseId: "a", Reason: "LEASE_LOST", Cause: cause}}}
			case c.GetRenew() != nil:
				failed := &pb.SessionEvent_CommandError{Code: int32(codes.Unavailable), Reason: "BACKEND_UNAVAILABLE"}
				return resultOf(c, &pb.SessionEvent_CommandResult{Outcome: &pb.SessionEvent_CommandResult_Error{Error: failed}})
			}
			return nil
		}}
		client := f.start(t)
		lock, err := client.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		<-lock.Done()
		var failed *Error
		if err := lock.Err(); !errors.As(err, &failed) || failed.Cause != cause {
			t.Error(err)
		}
		if err := client.Close(t.Context()); err != nil { // It waits for the release.
			t.Error(err)
		}
		if got := f.count(func(c *pb.SessionCommand) bool { return c.GetRelease() != nil }); got != want {
			t.Errorf("%s: %d releases", cause, got)
		}
	}
}

func TestALongLeaseEndsNoStreamBeforeItsRenewalIsLate(t *testing.T) {
	t.Parallel()
	for after, ends := range map[time.Duration]bool{time.Minute: false, 170 * time.Second: false, 226 * time.Second: true} {
		s := &session{ctx: t.Context(), config: &config{}, targets: make([]target, 2), pending: map[uint64]*command{}, held: map[string]*lease{}, need: make(chan struct{}, 1), wake: make(chan struct{}, 1), poke: make(chan struct{}, 1)}
		s.held["a"] = newLease(s, &pb.Lease{LeaseId: "a", Ttl: durationpb.New(10 * time.Minute)}, now(), nil)
		at := now() + after
		ctx, cancel := context.WithCancelCause(t.Context())
		s.tick, s.stream = at, &stream{ctx: ctx, cancel: cancel, opened: true, owed: map[uint64]*command{}, heard: at - time.Minute}
		s.step(at)
		if (ctx.Err() != nil) != ends {
			t.Errorf("after %v: %v", after, context.Cause(ctx))
		}
	}
}

func TestOnlyWhatIsDueIsRenewed(t *testing.T) {
	t.Parallel()
	f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
		if name := c.GetAcquire().GetRequest().GetName(); name == "short" {
			return resultOf(c, grants(time.Second, name))
		} else if name != "" {
			return resultOf(c, grants(time.Minute, name))
		}
		if id := c.GetRenew().GetLeaseId(); id != "" {
			renewed := &pb.RenewResponse{Lease: grants(time.Second, id).GetAcquire().GetLease()}
			return resultOf(c, &pb.SessionEvent_CommandResult{Outcome: &pb.SessionEvent_CommandResult_Renew{Renew: renewed}})
		}
		return nil
	}}
	client := f.start(t)
	names := []string{"short"}
	for i := range 900 {
		names = append(names, fmt.Sprint(i))
	}
	begin := time.Now()
	var group sync.WaitGroup
	for _, name := range names {
		group.Go(func() {
			if lock, err := client.Acquire(t.Context(), name); err != nil {
				t.Error(err)
			} else {
				t.Cleanup(func() { runtime.KeepAlive(lock) })
			}
		})
	}
	group.Wait()
	time.Sleep(4 * time.Second) // Time is the matter.
	due := int(time.Since(begin)/(300*time.Millisecond)) + 1
	if got := f.count(func(c *pb.SessionCommand) bool { return c.GetRenew() != nil }); got > due || got < due/3 {
		t.Errorf("%d renewals, and %d are due", got, due)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTheNextStreamSaysWhoItIsAndSendsWhatHasNoResultWithTheSameRequestID(t *testing.T) {
	t.Parallel()
	f := &fake{answer: func(stream int, c *pb.SessionCommand) *pb.SessionEvent {
		if c.GetAcquire() == nil || stream == 1 {
			return nil
		}
		return resultOf(c, grants(time.Minute, "a"))
	}}
	client := f.start(t)
	for _, wait := range []LockOption{Wait(0), Wait(time.Minute)} {
		f.mu.Lock()
		f.stream, f.seen = 0, nil
		f.mu.Unlock()
		client.session.mu.Lock()
		if st := client.session.stream; st != nil {
			st.cancel(&Error{Code: codes.Unavailable, Message: "a test"})
		}
		client.session.mu.Unlock()
		if err := client.Do(t.Context(), "a", func(context.Context, *Lock) error { return nil }, wait); err != nil {
			t.Fatal(err)
		}
		ids := map[string]int{}
		opens := f.count(func(c *pb.SessionCommand) bool {
			if id := c.GetAcquire().GetRequest().GetRequestId(); id != "" {
				ids[id]++
			}
			return c.GetOpen().GetClientName() == "fencepost-go" && c.GetOpen().GetClientVersion() == version
		})
		if len(ids) != 1 || opens != f.stream || f.seen[0].GetOpen() == nil {
			t.Error(ids, opens, f.stream)
		}
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestATokenThatIsReplacedIsTriedAndTheThirdRefusalIsBelieved(t *testing.T) {
	t.Parallel()
	for refused, ok := range map[int32]bool{2: true, 3: false} {
		f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
			if c.GetAcquire() != nil {
				return resultOf(c, grants(time.Minute, "a"))
			}
			return nil
		}}
		f.tokens.Store(refused)
		var calls atomic.Int32
		client := f.start(t, WithBearerToken(func(context.Context) (string, error) { return fmt.Sprint(calls.Add(1)), nil }))
		err := client.Do(t.Context(), "a", func(context.Context, *Lock) error { return nil }, Wait(time.Minute))
		if (err == nil) != ok || err != nil && !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%d refused: %v", refused, err)
		}
		f.tokens.Store(0)
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestTheLossOfALockThatIsDroppedWithoutAReleaseIsToldAndLogged(t *testing.T) {
	t.Parallel()
	f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
		if c.GetAcquire() != nil {
			return resultOf(c, grants(time.Minute, "a"))
		}
		return nil
	}}
	var log logBuffer
	client := f.start(t, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	told := make(chan error, 1)
	lock, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	lock.OnLost(func(err error) { told <- err })
	lock = nil
	for end := time.Now().Add(20 * time.Second); !strings.Contains(log.String(), "dropped without a release") || len(told) == 0; runtime.GC() {
		if time.Now().After(end) {
			t.Fatal(log.String())
		}
		time.Sleep(time.Millisecond)
	}
	var failed *Error
	if err := <-told; !errors.As(err, &failed) || failed.Cause != "dropped" {
		t.Error(err)
	}
	client.session.mu.Lock()
	if len(client.session.held) != 0 {
		t.Error("it is renewed")
	}
	client.session.mu.Unlock()
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// names are those of spans and events. What does not fit is dropped, because the global provider cannot be removed.
type names chan string

func (n names) add(name string) {
	select {
	case n <- name:
	default:
	}
}

// provider is global, because the first one stays the tracer's.
var provider = recorder{seen: make(names, 3), panics: &atomic.Pointer[string]{}}

type recorder struct {
	noop.TracerProvider
	seen   names
	panics *atomic.Pointer[string] // In the method of this name.
}

func (r recorder) at(method string) {
	if panics := r.panics.Load(); panics != nil && *panics == method {
		panic("boom")
	}
}

func (r recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracerOf{recorder: r} }

type tracerOf struct {
	noop.Tracer
	recorder recorder
}

type spanOf struct {
	noop.Span
	recorder recorder
}

func (t tracerOf) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.recorder.at("Start")
	t.recorder.seen.add(name)
	s := spanOf{recorder: t.recorder}
	return trace.ContextWithSpan(ctx, s), s
}

func (s spanOf) AddEvent(name string, _ ...trace.EventOption) {
	s.recorder.at("AddEvent")
	s.recorder.seen.add(name)
}
func (s spanOf) SetAttributes(...attribute.KeyValue) { s.recorder.at("SetAttributes") }
func (s spanOf) SetStatus(otelcodes.Code, string)    { s.recorder.at("SetStatus") }
func (s spanOf) End(...trace.SpanEndOption)          { s.recorder.at("End") }

func TestASpanShowsTheAcquireAndAnEventTheLoss(t *testing.T) { // Alone, because the provider is global.
	f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
		switch c.GetAcquire().GetRequest().GetName() {
		case "a":
			return resultOf(c, grants(time.Millisecond, "a"))
		case "held":
			failed := &pb.SessionEvent_CommandError{Code: int32(codes.FailedPrecondition), Reason: "LOCK_HELD"}
			return resultOf(c, &pb.SessionEvent_CommandResult{Outcome: &pb.SessionEvent_CommandResult_Error{Error: failed}})
		}
		return nil
	}}
	client := f.start(t)
	provider.panics.Store(nil)
	for len(provider.seen) > 0 {
		<-provider.seen
	}
	otel.SetTracerProvider(provider)
	ctx, caller := provider.Tracer("").Start(t.Context(), "caller")
	lock, err := client.Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	<-lock.Done()
	if got := []string{<-provider.seen, <-provider.seen, <-provider.seen}; fmt.Sprint(got) != "[caller fencepost.acquire lost]" {
		t.Error(got)
	}
	caller.End()
	for _, method := range []string{"Start", "SetAttributes", "SetStatus", "End", "AddEvent"} {
		provider.panics.Store(&method)
		lock, err := client.Acquire(ctx, "a")
		if err != nil {
			t.Error(method, err)
			continue
		}
		<-lock.Done()
		if _, err := client.Acquire(ctx, "held"); !errors.Is(err, ErrLocked) {
			t.Error(method, err)
		}
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

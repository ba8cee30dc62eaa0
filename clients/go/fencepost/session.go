package fencepost

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

const (
	version = "0.1.0" // Shown to operators.

	openLimit   = 5 * time.Second         // For a stream to open.
	tokenLimit  = 4 * time.Second         // For the function that returns the bearer token.
	probeLimit  = 2750 * time.Millisecond // For the result of a probe, which no store delays.
	owedQuiet   = 750 * time.Millisecond  // Without an event while a result is owed: then a probe is sent.
	maxQuiet    = 10 * time.Second        // The same while only waits, watches and leases are there.
	drainLimit  = 3 * time.Second         // For the results of a server that stops.
	maxTick     = 500 * time.Millisecond  // Timers stand still while the machine is suspended.
	minTick     = 5 * time.Millisecond    // Renewals that are due together are one message.
	tokenGrace  = 5 * time.Second         // For a bearer token that was good: its file may be replaced a little later.
	maxSilence  = 45 * time.Second        // Without a confirmation, of a long lease whose renewal is due.
	renewalPart = 0.3                     // Of the TTL, between renewals.
	grace       = 10 * time.Second        // For which the server keeps the places of waits when a stream breaks off.
)

// session is the stream of a client: a Session to one server at a time, and to the next address over a new connection
// when that one breaks off or is silent. A new stream attaches the leases again, and sends each command that has no result
// once more, with its request_id: callers see nothing of it, and waits keep their places for the grace.
type session struct {
	*config
	id      string          // By which the server finds it again on the next stream.
	ctx     context.Context // Ends with Close.
	end     context.CancelFunc
	work    sync.WaitGroup
	targets []target
	need    chan struct{} // Signals run that there is something to do.
	wake    chan struct{} // Signals the writer that there is something to send.
	poke    chan struct{} // Signals the clock that something is due earlier.
	ended   chan struct{} // Signals Close that a command has ended.

	mu       sync.Mutex // Never held while anything is sent, received or waited for.
	closing  bool
	lastID   uint64
	streams  uint64              // How many have begun.
	pending  map[uint64]*command // Those without a result.
	queues   [4][]*command       // Those to be sent next, by their class.
	held     map[string]*lease
	stream   *stream
	tick     time.Duration            // When the clock looks next.
	trip     time.Duration            // How long a server and the network take for what no store delays.
	last     *Error                   // How the last stream ended.
	accepted string                   // The bearer token of the last stream that worked.
	refused  map[string]time.Duration // When tokens were refused first, since one was accepted.
}

// stream is one attempt to serve the commands.
type stream struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	began  time.Duration

	// Guarded by the session.
	conn     *grpc.ClientConn
	token    string // That it sent.
	opened   bool
	worked   bool                // A command of a caller, or a renewal, has a result.
	sent     time.Duration       // The last command.
	heard    time.Duration       // The last event.
	owed     map[uint64]*command // Those sent without a result, also if nobody waits for it any more.
	inFlight [4]int              // The same, counted by their class.
	probe    *command            // That has no result.
	drains   time.Duration       // Since when the server stops.
}

func newSession(ctx context.Context, c *config, targets []target) *session {
	s := &session{
		config: c, id: rand.Text(), targets: targets, pending: map[uint64]*command{}, held: map[string]*lease{}, refused: map[string]time.Duration{}, tick: forever,
		need: make(chan struct{}, 1), wake: make(chan struct{}, 1), poke: make(chan struct{}, 1), ended: make(chan struct{}, 1),
	}
	s.ctx, s.end = context.WithCancel(ctx)
	s.work.Go(s.run)
	s.work.Go(s.watchClock)
	return s
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run opens one stream after the other while there is something to do.
func (s *session) run() {
	at, failures := 0, 0
	for {
		for !s.isNeeded() {
			select {
			case <-s.need:
			case <-s.ctx.Done():
			}
			if s.ctx.Err() != nil {
				return
			}
		}
		st, err := s.serve(s.targets[at])
		if s.ctx.Err() != nil {
			return
		}
		if st.worked || st.opened && now() > st.began+time.Second {
			failures = 0
		}
		failures++
		next := (at + 1) % len(s.targets)
		if err.Code == codes.Unauthenticated {
			next = at
		}
		err.describe(s.ctx, s.targets[at])
		isFinal := err.Reason == "TLS" && failures >= len(s.targets) || err.Reason != "TLS" && !err.retryable()
		wait := s.prepare(err, isFinal && (err.Code != codes.Unauthenticated || s.isRefused(st.token)))
		if st.opened || next != at {
			from, to := s.targets[at].text, s.targets[next].text
			go s.guard(func() { s.log.Warn("fencepost: connection replaced", "from", from, "to", to, "error", err) })
		}
		if at = next; failures >= max(2, len(s.targets)) || err.RetryAfter > 0 {
			sleep(s.ctx, min(pause(failures-1, err), wait))
		}
	}
}

func (s *session) isNeeded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctx.Err() == nil && len(s.pending)+len(s.held) > 0
}

// serve opens a stream to an address, and returns it when it has ended, and why.
func (s *session) serve(to target) (st *stream, failed *Error) {
	st = &stream{began: now(), owed: map[uint64]*command{}}
	st.ctx, st.cancel = context.WithCancelCause(s.ctx)
	defer st.cancel(nil)
	s.mu.Lock()
	s.stream = st
	s.lookBy(st.began + minTick)
	s.mu.Unlock()
	conn, err := s.connect(to)
	var call grpc.BidiStreamingClient[pb.SessionRequest, pb.SessionResponse]
	if err == nil {
		defer conn.Close()
		var ctx context.Context
		if ctx, err = s.withToken(st.ctx, &st.token); err == nil {
			call, err = pb.NewLockServiceClient(conn).Session(ctx)
		}
	}
	if err == nil {
		s.greet(st, conn)
		written := make(chan struct{})
		go func() { defer close(written); s.write(st, call) }()
		var message *pb.SessionResponse
		for message, err = call.Recv(); err == nil; message, err = call.Recv() {
			s.receive(st, message.GetEvents())
		}
		failed = errorOfCall(err, call.Trailer())
		st.cancel(nil)
		<-written
	} else {
		failed = errorOfCall(err, nil)
	}
	if cause, ok := errors.AsType[*Error](context.Cause(st.ctx)); ok {
		failed = cause
	}
	return st, failed
}

// greet queues the first commands of a stream: who this is, and the leases. Then come those without a result.
func (s *session) greet(st *stream, conn *grpc.ClientConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queues[unlimited]
	s.queues[unlimited] = nil
	s.streams++
	s.local(&pb.SessionCommand{Command: &pb.SessionCommand_Open_{Open: &pb.SessionCommand_Open{
		ClientName: "fencepost-go", ClientVersion: version, SessionId: s.id, Number: s.streams, Grace: durationpb.New(grace),
	}}})
	for _, l := range s.held {
		s.local(&pb.SessionCommand{Command: &pb.SessionCommand_Attach_{Attach: &pb.SessionCommand_Attach{LeaseIds: []string{l.id()}}}}).lease = l
	}
	s.queues[unlimited] = append(s.queues[unlimited], queue...)
	st.conn, st.heard = conn, now()
}

// prepare makes the commands ready for the next stream, and returns how long a pause before it may be.
func (s *session) prepare(err *Error, isFinal bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream, s.queues, s.last = nil, [4][]*command{}, err
	for _, c := range s.pending {
		c.sent, c.queued = 0, false
		switch {
		case c.isLocal || c.lease != nil && s.held[c.lease.id()] != c.lease:
			s.forget(c)
		case isFinal && c.lease == nil && !c.isAbandoned, c.tries == 1:
			s.over(c, err)
		case c.tries > 0:
			c.tries--
		}
	}
	for _, c := range slices.SortedFunc(maps.Values(s.pending), func(a, b *command) int { return cmp.Compare(a.id, b.id) }) {
		if c.from == 0 {
			s.enqueue(c)
		}
	}
	wait := forever
	for _, l := range s.held {
		wait = min(wait, l.ttl/10)
	}
	return wait
}

// isRefused tells whether a refused token is the one that is to be sent now.
func (s *session) isRefused(token string) bool {
	var current string
	_, unread := s.withToken(s.ctx, &current)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[token] = cmp.Or(s.refused[token], now())
	isGood := token == s.accepted && now() < s.refused[token]+tokenGrace
	isCurrent := unread == nil && current == token
	return isCurrent && !isGood || len(s.refused) >= maxTries // A function may return another one each time.
}

func (s *session) write(st *stream, call grpc.BidiStreamingClient[pb.SessionRequest, pb.SessionResponse]) {
	for {
		if batch := s.batch(st); len(batch) > 0 {
			if call.Send(&pb.SessionRequest{Commands: batch}) != nil { // Recv returns its error.
				return
			}
			continue
		}
		select {
		case <-s.wake:
		case <-st.ctx.Done():
			return
		}
	}
}

func (s *session) receive(st *stream, events []*pb.SessionEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.heard = now()
	if !st.opened {
		st.opened, s.accepted, s.refused = true, st.token, map[string]time.Duration{}
	}
	for i, event := range events {
		switch event := event.GetEvent().(type) {
		case *pb.SessionEvent_Result:
			s.result(st, event.Result)
		case *pb.SessionEvent_Lost_:
			if l := s.held[event.Lost.GetLeaseId()]; l != nil && event.Lost.GetReason() == "LEASE_LOST" { // For other reasons it goes on until its end.
				s.lose(l, lost(event.Lost.GetCause(), "the server reports the end of the lease"))
			}
		case *pb.SessionEvent_Draining_:
			st.drains = cmp.Or(st.drains, st.heard)
		case *pb.SessionEvent_Watched_:
			s.watched(event.Watched.GetId(), events[i])
		case *pb.SessionEvent_Observed_:
			s.watched(event.Observed.GetId(), events[i])
		}
	}
}

// renew renews a lease. Renewals are commands of their own, so that only what is due is renewed, whatever else is held.
func (s *session) renew(l *lease) {
	renew := &pb.SessionCommand_Renew{Renew: &pb.RenewRequest{LeaseId: l.id()}}
	l.renewal = s.add(&command{message: &pb.SessionCommand{Command: renew}, class: renewals, end: forever, lease: l})
}

func (s *session) renewed(l *lease, sent, ttl time.Duration) {
	if l.renewal = nil; ttl <= 0 { // The answer lacks it.
		l.due = now() + maxTick
	} else if s.held[l.id()] == l {
		l.confirm(sent, ttl)
		s.lookBy(l.due)
	}
}

// drop ends a lease for this cause, which is not renewed any more.
func (s *session) drop(l *lease, cause error) {
	delete(s.held, l.id())
	l.cancel(cause)
	if l.renewal != nil {
		s.forget(l.renewal)
	}
}

// lose ends a held lease that was not released.
func (s *session) lose(l *lease, cause *Error) {
	if s.held[l.id()] != l {
		return
	}
	s.drop(l, cause)
	if cause == unrenewed && !s.closing { // The server may count on it for longer.
		c := l.giveBack(releaseLimit)
		c.from = time.Duration(l.end.Load()) // Until then its holder may work.
		s.add(c)
	}
	go s.guard(func() {
		s.log.Warn("fencepost: lease lost", "namespace", l.info.GetNamespace(), "lock", l.info.GetName(), "token", l.info.GetFencingToken(), "cause", cause.Cause, "error", cause)
		l.span.AddEvent("lost", trace.WithAttributes(
			attribute.String("fencepost.lock", l.info.GetName()), attribute.String("fencepost.cause", cause.Cause)))
	})
}

// close ends all calls with ErrClosed, releases all leases, and waits until nothing is pending or ctx ends.
func (s *session) close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for _, c := range s.pending {
		if c.class != renewals && !c.isLocal {
			c.resolve(ErrClosed)
			if c.isAcquire {
				s.abandon(c)
			} else {
				s.forget(c)
			}
		}
	}
	leases := slices.Collect(maps.Values(s.held))
	s.mu.Unlock()
	err := releaseAll(ctx, leases, ErrClosed)
	for s.isNeeded() && ctx.Err() == nil {
		select {
		case <-s.ended:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	for _, c := range s.pending {
		if err == nil && c.isAcquire { // It may be granted yet.
			err = s.unanswered()
		}
	}
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	return err
}

package fencepost

import (
	"cmp"
	"context"
	"math"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

const (
	callLimit    = 10 * time.Second // For a command that does not wait.
	attemptLimit = 5 * time.Second  // For the result of a wait after its end.
	releaseLimit = 5 * time.Second  // For a release, and for Close.
	undoLimit    = 15 * time.Second // For an acquire that was abandoned.
	maxTries     = 3                // How many streams may end before a call without a wait fails.
	maxWait      = 24 * time.Hour   // Of one command; the next one asks for less where the namespace allows less.

	messageBytes    = 48 << 10 // Of many commands, below the largest request of the server.
	commandBytes    = 60 << 10 // Of one, which fails alone: the server would end the stream.
	messageCommands = 500
	maxUnread       = 1000 // Messages of a watch, which then begins anew.
)

// class is what of a server's limit a command counts for.
type class int

// In the order in which they are sent.
const (
	unlimited class = iota
	renewals        // And releases.
	calls
	waits
)

// limits are how many commands of each class may have no result: a server takes 1,000 in all.
var limits = [4]int{math.MaxInt, 240, 150, 600}

// command is sent on one stream after the other until it has a result.
type command struct {
	message *pb.SessionCommand
	id      uint64
	class   class
	end     time.Duration // When it fails without a result.
	waitEnd time.Duration // When its wait is over; 0: it does not wait.
	longest time.Duration // The wait that it asks for at most.
	tries   int           // How many streams may end before it fails; 0: any number.
	lease   *lease        // That it renews or attaches.
	span    trace.Span    // Of an acquire's caller.

	isAcquire   bool
	count       int                   // Of the locks that it takes.
	isLocal     bool                  // The next stream does not send it.
	isAbandoned bool                  // Nobody waits for its result, and what it is granted is given back.
	events      chan *pb.SessionEvent // The messages of a watch that were not read.

	// Guarded by the session until done is closed.
	result       *pb.SessionEvent_CommandResult
	sent         time.Duration // When it was sent on this stream; 0: it was not, or was refused.
	wasSent      bool
	queued       bool
	from         time.Duration // When it is sent again, after a pause; 0: there is none.
	skips        bool          // Messages, until the watch has begun anew.
	isSuperseded bool
	failures     int
	leases       []*lease
	err          error
	done         chan struct{}
}

func (c *command) resolve(err error) {
	select {
	case <-c.done:
	default:
		c.err = err
		close(c.done)
	}
}

// prepare sets how long it waits from now on. One that is abandoned only finds what it was granted.
func (c *command) prepare(at time.Duration) {
	if c.wasSent { // What was sent may still be read.
		c.message = proto.CloneOf(c.message)
	}
	var wait *durationpb.Duration
	if c.waitEnd > 0 { // A wait never becomes a try, whose errors differ.
		wait = durationpb.New(min(max(c.waitEnd-at, time.Millisecond), c.longest))
	}
	switch m := c.message.GetCommand().(type) {
	case *pb.SessionCommand_Acquire_:
		m.Acquire.Request.Wait = wait
	case *pb.SessionCommand_AcquireAll_:
		m.AcquireAll.Request.Wait = wait
	case *pb.SessionCommand_Campaign_:
		m.Campaign.Wait = wait
	}
}

// send adds a command of a caller.
func (s *session) send(c *command) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return ErrClosed
	}
	s.add(c)
	return nil
}

// do sends a command for at most 10 s, and waits for its result. It goes on if ctx ends before.
func (s *session) do(ctx context.Context, class class, m *pb.SessionCommand) (*command, error) {
	c := &command{message: m, class: class, end: now() + callLimit}
	if err := ctx.Err(); err != nil {
		return c, err
	}
	if err := s.send(c); err != nil {
		return c, err
	}
	return c, c.await(ctx)
}

func (c *command) await(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *session) add(c *command) *command {
	c.done = make(chan struct{})
	if s.ctx.Err() != nil { // Nothing would end it.
		c.resolve(ErrClosed)
		return c
	}
	s.lastID++
	c.id, c.message.Id = s.lastID, s.lastID
	s.pending[c.id] = c
	if c.from == 0 {
		s.enqueue(c)
	}
	s.lookBy(min(c.end, cmp.Or(c.from, now()+maxTick)))
	return c
}

// local adds a command of this stream alone.
func (s *session) local(m *pb.SessionCommand) *command {
	return s.add(&command{message: m, class: unlimited, end: forever, isLocal: true})
}

func (s *session) enqueue(c *command) {
	if c.queued {
		return
	}
	c.queued, c.from = true, 0
	s.queues[c.class] = append(s.queues[c.class], c)
	signal(s.wake)
	if s.stream == nil {
		signal(s.need)
	}
}

func (s *session) forget(c *command) {
	delete(s.pending, c.id)
	signal(s.ended)
}

// batch takes the commands of the next message out of the queue.
func (s *session) batch(st *stream) (batch []*pb.SessionCommand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != st || st.drains > 0 || st.ctx.Err() != nil {
		return nil
	}
	at, size := now(), 0
	for class := range s.queues {
		for queue := &s.queues[class]; len(*queue) > 0 && st.inFlight[class] < limits[class] && len(batch) < messageCommands; *queue = (*queue)[1:] {
			c := (*queue)[0]
			if s.pending[c.id] != c { // It was given up.
				continue
			}
			c.prepare(at)
			bytes := proto.Size(c.message) + 8
			if bytes > commandBytes {
				s.over(c, &Error{Code: codes.InvalidArgument, Reason: "INVALID_FIELD", Message: "the request is too large"})
				continue
			}
			if size += bytes; size > messageBytes && len(batch) > 0 {
				return batch
			}
			c.queued, c.sent, c.wasSent, c.skips = false, at, true, false
			st.owed[c.id] = c
			st.inFlight[class]++
			st.sent, batch = at, append(batch, c.message)
		}
	}
	return batch
}

func (s *session) result(st *stream, r *pb.SessionEvent_CommandResult) {
	c := st.owed[r.GetId()]
	if c == nil {
		return
	}
	delete(st.owed, c.id)
	st.inFlight[c.class]--
	signal(s.wake) // There is room for another one.
	if c == st.probe {
		st.probe = nil
	}
	if s.pending[c.id] != c { // It was given up.
		if c.isAcquire {
			c.result, c.isAbandoned = r, true
			_ = s.granted(c)
		}
		return
	}
	if failed := r.GetError(); failed != nil {
		c.sent = 0
		s.failed(st, c, errorOfCommand(failed))
		return
	}
	if s.forget(c); c.isLocal {
		s.trip = max(st.heard-c.sent, s.trip/2)
	} else {
		st.worked = true
	}
	c.result = r
	var err error
	switch {
	case c.isAcquire:
		err = s.granted(c)
	case c.lease != nil && c.lease.renewal == c:
		s.renewed(c.lease, c.sent, r.GetRenew().GetLease().GetTtl().AsDuration())
	}
	c.resolve(err)
}

// failed decides what becomes of a command that the server refused.
func (s *session) failed(st *stream, c *command, err *Error) {
	at, wait, isWait := now(), time.Duration(0), c.waitEnd > 0
	switch {
	case err.Code == codes.Unauthenticated: // With the next stream comes the token of that time.
		st.cancel(err)
		return
	case err.Reason == "DRAINING" || st.drains > 0 && err.Reason == "INVALID_FIELD": // The next stream sends it.
		st.drains = cmp.Or(st.drains, at)
		return
	case c.lease != nil && (err.Is(ErrLeaseLost) || s.held[c.lease.id()] != c.lease):
		s.lose(c.lease, err)
		s.over(c, err)
		return
	case err.Reason == "SUPERSEDED" && !c.isAbandoned && !c.isSuperseded: // By the same command of an earlier stream.
		c.isSuperseded = true
	case err.Is(ErrTimeout) && isWait && c.waitEnd > at+50*time.Millisecond: // The next command goes on with the wait.
	case err.Metadata["field"] == "wait" && isWait && c.longest > time.Minute:
		c.longest /= 60
	case err.Code == codes.Canceled && c.events != nil: // Its messages were not read.
	case c.lease != nil, c.tries == 0 && !c.isLocal && (err.retryable() || err.Reason == "QUEUE_FULL" && isWait) && err.Code != codes.Canceled:
		c.failures++
		wait = pause(c.failures, err)
		if at+wait >= c.end || isWait && at+wait >= c.waitEnd {
			s.over(c, err)
			return
		}
	default:
		s.over(c, err)
		return
	}
	c.from = at + wait
	s.lookBy(c.from)
}

// over ends a command with an error. What an acquire may have been granted is given back.
func (s *session) over(c *command, err *Error) {
	c.resolve(err)
	if c.isAcquire && c.wasSent && !c.isAbandoned && err.unknown() {
		s.abandon(c)
		return
	}
	s.forget(c)
}

// abandon takes an acquire back, whose caller is gone.
func (s *session) abandon(c *command) {
	if s.pending[c.id] != c {
		for _, l := range c.leases {
			s.drop(l, errReleased)
			s.add(l.giveBack(releaseLimit))
		}
		return
	}
	if !c.wasSent {
		s.forget(c)
		return
	}
	c.isAbandoned, c.end, c.waitEnd, c.tries = true, now()+undoLimit, 0, 0
	if s.cancel(c); c.sent == 0 {
		s.enqueue(c)
	}
}

// granted makes the leases of an acquire's result. They are renewed before its caller has them.
func (s *session) granted(c *command) error {
	leases := c.result.GetAcquireAll().GetLeases()
	if one := c.result.GetAcquire().GetLease(); one != nil {
		leases = []*pb.Lease{one}
	}
	for _, info := range leases {
		l := newLease(s, info, c.sent, c.span)
		s.held[l.id()] = l
		s.lookBy(min(l.due, l.tellAt()))
		c.leases = append(c.leases, l)
	}
	if len(leases) == c.count && c.count > 0 && !c.isAbandoned {
		return nil
	}
	s.abandon(c)
	return errIncomplete
}

func (s *session) watched(id uint64, event *pb.SessionEvent) {
	c := s.pending[id]
	if c == nil || c.events == nil || c.skips {
		return
	}
	c.failures = 0
	select {
	case c.events <- event:
		return
	default:
	}
	s.cancel(c)
	c.skips = true
	for range maxUnread {
		select {
		case <-c.events:
		default:
		}
	}
}

// cancel ends a wait or a watch, if it was sent.
func (s *session) cancel(c *command) {
	if c.sent > 0 {
		s.local(&pb.SessionCommand{Command: &pb.SessionCommand_Cancel_{Cancel: &pb.SessionCommand_Cancel{Id: c.id}}})
	}
}

// follow passes the messages of a watch on until one is enough, which it answers with false, or it ends with an error.
func (s *session) follow(ctx context.Context, m *pb.SessionCommand, pass func(*pb.SessionEvent) bool) error {
	c := &command{message: m, class: unlimited, end: forever, events: make(chan *pb.SessionEvent, maxUnread)}
	if err := s.send(c); err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pending[c.id] == c {
			s.forget(c)
			s.cancel(c)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.done:
			return c.err
		case event := <-c.events:
			if !pass(event) {
				return nil
			}
		}
	}
}

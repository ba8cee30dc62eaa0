package fencepost

import (
	"math"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

// watchClock does what is due.
func (s *session) watchClock() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.poke:
		case <-timer.C:
		case <-s.ctx.Done():
			s.mu.Lock()
			for _, c := range s.pending {
				s.forget(c)
				c.resolve(ErrClosed)
			}
			s.mu.Unlock()
			return
		}
		timer.Reset(s.step(now()))
	}
}

// lookBy makes the clock look at this time, or earlier.
func (s *session) lookBy(at time.Duration) {
	if at < s.tick {
		s.tick = at
		signal(s.poke)
	}
}

// step does what is due, and returns the time until the next step.
func (s *session) step(at time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.stream; st != nil && at > s.tick && at-s.tick > time.Second { // The process was stopped: the server was not silent.
		if st.heard = at; st.probe != nil {
			st.probe.end = at + probeLimit + 2*s.trip
		}
	}
	next, shortest, stalled := at+maxTick, forever, forever
	for _, l := range s.held {
		tell := l.tellAt()
		if at >= tell {
			s.lose(l, unrenewed)
			continue
		}
		if l.due <= at && l.renewal == nil {
			s.renew(l)
		} else if l.renewal == nil {
			next = min(next, l.due)
		}
		next, shortest = min(next, tell), min(shortest, l.ttl)
		late := time.Duration(float64(l.ttl)*renewalPart) + maxSilence
		stalled = min(stalled, l.confirmed+min((time.Duration(l.end.Load())-l.confirmed)/2, late))
	}
	for _, c := range s.pending {
		if c.end <= at || c.waitEnd > 0 && c.waitEnd <= at && !c.wasSent {
			s.over(c, s.unanswered())
			continue
		}
		if c.from > 0 && c.from <= at {
			s.enqueue(c)
		} else if c.from > 0 {
			next = min(next, c.from)
		}
		next = min(next, c.end)
	}
	if st := s.stream; st != nil {
		next = min(next, s.look(st, at, shortest, stalled))
	}
	if len(s.pending)+len(s.held) == 0 {
		next = math.MaxInt64
	} else if s.stream == nil {
		signal(s.need)
	}
	s.tick = next
	return max(next-at, minTick)
}

// look ends a stream that is silent or does not serve, and sends probes. It returns when to look again.
func (s *session) look(st *stream, at, shortest, stalled time.Duration) time.Duration {
	patience := min(max(time.Duration(float64(shortest)*renewalPart), time.Second), 10*time.Second) + s.trip
	stalled = max(stalled, st.began+patience)
	if len(s.targets) == 1 && st.opened { // Another connection to a server that answers does not help.
		stalled = max(stalled, st.heard+patience)
	}
	due := stalled
	quiet := min(maxQuiet, max(shortest/6, owedQuiet))
	if st.inFlight[calls]+st.inFlight[renewals] > 0 || st.sent > st.heard {
		quiet = owedQuiet
	}
	switch {
	case !st.opened:
		due = min(due, st.began+openLimit)
	case st.drains > 0:
		due = min(due, st.drains+drainLimit)
	case st.probe != nil:
		due = min(due, st.probe.end)
	case st.heard+quiet > at:
		return min(due, st.heard+quiet)
	default:
		st.probe = s.local(&pb.SessionCommand{Command: &pb.SessionCommand_Cancel_{Cancel: &pb.SessionCommand_Cancel{}}})
		st.probe.end = at + probeLimit + 2*s.trip
		due = min(due, st.probe.end)
	}
	if due <= at {
		st.cancel(&Error{Code: codes.Unavailable, Message: "the server did not answer in time"})
		return forever
	}
	return due
}

// unanswered is the error of a command without a result.
func (s *session) unanswered() *Error {
	if s.last != nil && (s.stream == nil || !s.stream.opened) {
		return s.last
	}
	return &Error{Code: codes.DeadlineExceeded, Message: "no server answered in time"}
}

package fencepost

import (
	"context"
	"errors"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

const (
	maxIDs     = 1000     // The locks of a stream.
	maxIDBytes = 48 << 10 // Their ids, below the largest request of the server.

	firstBeat   = 50 * time.Millisecond // After a grant: many share a beat, and short holds need none.
	maxInterval = 20 * time.Second      // Between beats.
	maxSilence  = 45 * time.Second      // Without a confirmation, of a long lease.
	lingering   = 10 * time.Second      // Of a stream without leases.
	maxTick     = time.Second           // A timer that a suspend of the machine made late is at most so late.
)

var errSilent = errors.New("no renewal was confirmed for half of the TTL")

// keeper renews the leases of held locks by beats on KeepAlive streams.
type keeper struct {
	client *Client
	mu     sync.Mutex // Never held while anything is sent or received, or by anything that waits.
	groups []*group
}

// group is the locks of one stream: at most 1,000, with ids of at most 48 KiB, of a similar TTL. Its goroutine decides
// what is due; each stream has goroutines of its own to send and to receive.
type group struct {
	*keeper
	class int
	locks map[string]*Lock
	bytes int
	wake  chan struct{}

	stream   *stream
	failures int
	due      time.Duration // Of the next beat, if it is earlier than the interval demands.
	retry    time.Duration // When the next stream may be opened.
	idle     time.Duration // Since when there are no locks.
	interval time.Duration // Between beats.
}

// stream is one attempt to keep a group.
type stream struct {
	cancel func()
	conn   *conn
	before *stream // Still listened to until this one has worked.
	beats  chan *pb.KeepAliveRequest
	opened time.Duration
	ended  bool
	number uint64
	sent   time.Duration
	ids    []string // Of the beat in flight; nil if none is.
}

// add keeps the leases of locks. It returns false if the client is closed.
func (k *keeper) add(locks []*Lock) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.client.ctx.Err() != nil {
		return false
	}
	for _, l := range locks {
		id := l.lease.GetLeaseId()
		g := k.room(bits.Len64(uint64(l.ttl/time.Millisecond))/2, len(id))
		g.locks[id], g.bytes, l.group = l, g.bytes+len(id), g
		// A grant that waited for a free stream of its connection has less than its TTL left.
		left := time.Duration(l.end.Load()) - now()
		if due := now() + min(firstBeat, left/10); due < g.due {
			g.due = due
			g.signal()
		}
	}
	return true
}

func (k *keeper) room(class, bytes int) *group {
	for _, g := range k.groups {
		if g.class == class && len(g.locks) < maxIDs && g.bytes+bytes <= maxIDBytes {
			return g
		}
	}
	g := &group{keeper: k, class: class, locks: map[string]*Lock{}, wake: make(chan struct{}, 1), due: forever}
	k.groups = append(k.groups, g)
	k.client.work.Go(g.run)
	return g
}

func (k *keeper) forget(l *Lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.group.remove(l)
}

func (k *keeper) all() (locks []*Lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.groups {
		for _, l := range g.locks {
			locks = append(locks, l)
		}
	}
	return locks
}

func (g *group) remove(l *Lock) {
	if id := l.lease.GetLeaseId(); g != nil && g.locks[id] == l {
		delete(g.locks, id)
		g.bytes -= len(id)
		if len(g.locks) == 0 {
			g.idle, g.due = now(), forever
		}
	}
}

func (g *group) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *group) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-g.wake:
		case <-timer.C:
		case <-g.client.ctx.Done():
			return
		}
		next, lost := g.step(now())
		for _, l := range lost {
			_ = l.Err() // It reads the clock, and ends the lock.
		}
		if next < 0 {
			return
		}
		timer.Reset(next)
	}
}

// step does what is due. It returns the time until the next step, negative if the group has ended, and the locks whose
// time is over.
func (g *group) step(now time.Duration) (next time.Duration, lost []*Lock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.locks) == 0 && now >= g.idle+lingering {
		g.groups = slices.DeleteFunc(g.groups, func(other *group) bool { return other == g })
		g.stream.end()
		return -1, nil
	}
	interval, stalled, wake := maxInterval, forever, now+maxTick
	for _, l := range g.locks {
		end := time.Duration(l.end.Load())
		if end <= now || l.ctx.Err() != nil {
			lost = append(lost, l)
			g.remove(l)
			continue
		}
		interval = min(interval, l.ttl*3/10)
		stalled = min(stalled, l.confirmed+min((end-l.confirmed)/2, maxSilence))
		wake = min(wake, end)
	}
	g.interval = interval
	if s := g.stream; s != nil && s.ended {
		s.end()
		g.failures++
		g.stream, g.due, g.retry = nil, min(g.due, now), now+pause(g.failures, nil)
	}
	patience := min(max(interval, time.Second), 10*time.Second)
	switch s := g.stream; {
	case len(g.locks) == 0:
	case s == nil && max(g.due, g.retry) <= now:
		g.open(now, nil)
	case s == nil:
		wake = min(wake, max(g.due, g.retry))
	case max(stalled, s.opened+patience) <= now:
		g.client.pool.replace(s.conn, errSilent)
		g.open(now, s)
	case s.ids != nil:
		wake = min(wake, max(stalled, s.opened+patience))
	case min(g.due, s.sent+interval) <= now:
		g.beat(now)
	default:
		wake = min(wake, g.due, s.sent+interval)
	}
	return max(wake-now, 0), lost
}

// open opens a stream, and keeps the one before until it works.
func (g *group) open(now time.Duration, before *stream) {
	conn, err := g.client.pool.use(&g.client.pool.calls)
	if err != nil { // Of the configuration, or because the client closes.
		g.failures++
		g.retry = now + pause(g.failures, nil)
		return
	}
	if before != nil {
		before.before.end()
		before.before = nil
	}
	ctx, cancel := context.WithCancel(g.client.ctx)
	s := &stream{cancel: cancel, conn: conn, before: before, beats: make(chan *pb.KeepAliveRequest, 1), opened: now}
	g.stream = s
	g.beat(now)
	g.client.work.Go(func() { g.listen(ctx, s) })
}

// beat names all leases. There is one beat in flight, so that it does not wait for the one before to be sent.
func (g *group) beat(now time.Duration) {
	s := g.stream
	s.number, s.sent, s.ids = s.number+1, now, slices.Collect(maps.Keys(g.locks))
	s.beats <- &pb.KeepAliveRequest{Beat: s.number, LeaseIds: s.ids}
	g.due = forever
}

func (g *group) listen(ctx context.Context, s *stream) {
	defer s.cancel()
	kept, err := pb.NewLockServiceClient(s.conn).KeepAlive(ctx)
	worked := false
	var trailer metadata.MD
	if err == nil {
		go func() {
			for {
				select {
				case beat := <-s.beats:
					_ = kept.Send(beat) // Recv returns its error.
				case <-ctx.Done():
					return
				}
			}
		}()
		for {
			var event *pb.KeepAliveResponse
			if event, err = kept.Recv(); err != nil {
				break
			}
			worked = true
			g.handle(s, event)
		}
		trailer = kept.Trailer()
	}
	_ = g.client.failed(ctx, s.conn, err, trailer)
	g.client.pool.done(s.conn, worked)
	g.mu.Lock()
	s.ended = true
	g.mu.Unlock()
	g.signal()
}

func (g *group) handle(s *stream, event *pb.KeepAliveResponse) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.signal()
	switch event := event.GetEvent().(type) {
	case *pb.KeepAliveResponse_Ask_:
		if now() > s.sent+g.interval/2 { // Otherwise the beat that it asks for has just been sent.
			g.due = 0
		}
	case *pb.KeepAliveResponse_Lost_:
		l := g.locks[event.Lost.GetLeaseId()]
		if l != nil && event.Lost.GetReason() == "LEASE_LOST" { // For other reasons it goes on until its end.
			g.remove(l)
			l.lose(&Error{Reason: "LEASE_LOST", Cause: event.Lost.GetCause(), Message: "the server reports the end of the lease"})
		}
	case *pb.KeepAliveResponse_Kept_:
		if event.Kept.GetBeat() != s.number || len(event.Kept.GetTtls()) != len(s.ids) {
			return
		}
		for i, id := range s.ids {
			l, ttl := g.locks[id], event.Kept.GetTtls()[i].AsDuration()
			if l == nil || ttl <= 0 {
				continue
			}
			l.confirmed, l.ttl = max(l.confirmed, s.sent), ttl
			l.end.Store(max(l.end.Load(), int64(s.sent+ttl)))
		}
		g.failures, s.ids = 0, nil
		s.before.end()
		s.before = nil
	}
}

func (s *stream) end() {
	if s != nil {
		s.cancel()
		s.before.end()
	}
}

// Package locks holds locks of Fencepost while a function runs. Copy this file.
//
//	err := locks.New(ctx, conn, "me").With(ctx, &pb.AcquireRequest{Name: "reports", Wait: durationpb.New(time.Minute)},
//		func(ctx context.Context, token uint64) error { return save(ctx, token) })
//
// A lease counts from before its request was sent, so that ctx ends before another client can hold the lock. A process
// can be paused between a check of ctx and a write: the resource must compare the tokens.
package locks

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	pb "example.com/fencepost/fencepost/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Error is a failed call. Its reason is that of the server's ErrorInfo, or the gRPC code if there is none.
type Error struct {
	Reason, Message string
	Retryable       bool
}

var ( // For errors.Is, which compares reasons.
	ErrLockHeld    = &Error{Reason: "LOCK_HELD"}
	ErrWaitTimeout = &Error{Reason: "WAIT_TIMEOUT"}
	ErrLeaseLost   = &Error{Reason: "LEASE_LOST", Message: "no renewal was confirmed in time"}
	retryable      = []codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Unknown}
	retry          = 200 * time.Millisecond
)

func (e *Error) Error() string        { return e.Reason + ": " + e.Message }
func (e *Error) Is(target error) bool { t, ok := target.(*Error); return ok && t.Reason == e.Reason }
func typed(err error) *Error {
	s := status.Convert(err)
	e := &Error{s.Code().String(), s.Message(), slices.Contains(retryable, s.Code())}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "fencepost" {
			e.Reason = info.Reason
		}
	}
	return e
}

// Client keeps the leases of up to 1000 locks on one KeepAlive stream.
type Client struct {
	pb.LockServiceClient
	owner  string
	mu     sync.Mutex
	timers map[string]*time.Timer // Of the leases held, by their ids.
	lose   map[string]context.CancelCauseFunc
	stream grpc.BidiStreamingClient[pb.KeepAliveRequest, pb.KeepAliveResponse]
	beats  []func(ttls []*durationpb.Duration) // Those without an answer; the server answers them in their order.
}

// New returns a client that keeps its leases until ctx ends.
func New(ctx context.Context, conn grpc.ClientConnInterface, owner string) *Client {
	c := &Client{LockServiceClient: pb.NewLockServiceClient(conn), owner: owner,
		timers: map[string]*time.Timer{}, lose: map[string]context.CancelCauseFunc{}}
	go c.keep(ctx)
	return c
}

// With holds a lock while f runs. The context of f ends if the lease is or may be lost; With then returns ErrLeaseLost.
func (c *Client) With(ctx context.Context, req *pb.AcquireRequest, f func(ctx context.Context, token uint64) error) error {
	req.Namespace, req.Owner, req.RequestId = cmp.Or(req.Namespace, "default"), c.owner, rand.Text()
	for end := time.Now().Add(req.Wait.AsDuration()); ; time.Sleep(retry) {
		sent, wait := time.Now(), max(time.Until(end), 0)
		req.Wait = durationpb.New(wait) // The request_id makes a repeated call find the claim of the call before.
		call, cancel := context.WithTimeout(ctx, wait+5*time.Second)
		answer, err := c.Acquire(call, req)
		cancel()
		if err == nil {
			return c.hold(ctx, answer.Lease, sent.Add(answer.Lease.Waited.AsDuration()+answer.Lease.Ttl.AsDuration()), f)
		}
		if failed := typed(err); !failed.Retryable || ctx.Err() != nil || time.Now().Add(retry).After(end) {
			return failed
		}
	}
}

func (c *Client) hold(ctx context.Context, lease *pb.Lease, until time.Time, f func(context.Context, uint64) error) error {
	work, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	drop := func() { delete(c.timers, lease.LeaseId); delete(c.lose, lease.LeaseId) }
	timer := time.AfterFunc(time.Until(until), func() { lose(ErrLeaseLost); c.beat(drop) })
	defer timer.Stop()
	c.beat(func() { c.timers[lease.LeaseId], c.lose[lease.LeaseId] = timer, lose })
	err := f(work, lease.FencingToken)
	lost := context.Cause(work)
	c.beat(drop)
	if !errors.Is(lost, ErrLeaseLost) {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel() // Without an answer, the lease ends with its TTL.
		release := &pb.ReleaseRequest{LeaseId: lease.LeaseId}
		if _, failed := c.Release(end, release, grpc.WaitForReady(true)); errors.Is(typed(failed), ErrLeaseLost) {
			lost = typed(failed)
		}
	}
	return errors.Join(err, lost)
}
func (c *Client) beat(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	req, timers, sent := &pb.KeepAliveRequest{}, []*time.Timer(nil), time.Now() // It names all leases.
	for id, timer := range c.timers {
		req.LeaseIds, timers = append(req.LeaseIds, id), append(timers, timer)
	}
	c.beats = append(c.beats, func(ttls []*durationpb.Duration) {
		for i, ttl := range ttls {
			if ttl.AsDuration() > 0 && timers[i].Stop() {
				timers[i].Reset(time.Until(sent.Add(ttl.AsDuration())))
			}
		}
	})
	if c.stream != nil {
		c.stream.Send(req)
	}
}

func (c *Client) keep(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(retry) {
		stream, err := c.KeepAlive(ctx)
		c.beat(func() { c.stream, c.beats = stream, nil }) // It names all leases again.
		for event := (*pb.KeepAliveResponse)(nil); err == nil; event, err = stream.Recv() {
			if event.GetAsk() != nil {
				c.beat(func() {})
			}
			c.mu.Lock()
			if kept := event.GetKept(); kept != nil {
				c.beats[0](kept.Ttls)
				c.beats = c.beats[1:]
			}
			if lost := event.GetLost(); lost.GetReason() == ErrLeaseLost.Reason && c.lose[lost.LeaseId] != nil {
				c.lose[lost.LeaseId](&Error{Reason: lost.Reason, Message: lost.Cause})
			}
			c.mu.Unlock()
		}
	}
}

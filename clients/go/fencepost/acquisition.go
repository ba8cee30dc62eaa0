package fencepost

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

// maxTries is how often a call without a wait is sent if no server answers.
const maxTries = 3

// lateAnswer is how long an attempt goes on when another one was granted.
const lateAnswer = 2 * time.Second

// handOver is when the next call takes a wait over, before a proxy ends a call that is idle for 60 s. A test shortens it.
var handOver = 45 * time.Second

// An attempt is one call for locks. All attempts of one request have the same request_id, so that each finds the claim of
// the one before.
type attempt struct {
	link  *link
	wait  *durationpb.Duration
	limit time.Duration
}

type send func(context.Context, attempt) ([]*pb.Lease, error)

// answer is what an attempt returned.
type answer struct {
	number int
	sent   time.Duration
	leases []*pb.Lease
	err    error
}

// acquisition is a request for locks with all its attempts.
type acquisition struct {
	*Client
	caller  context.Context
	ctx     context.Context // Of the attempts: ends with that of the caller, and with the client.
	cancel  context.CancelFunc
	link    *link
	send    send
	count   int           // Of the locks.
	limit   time.Duration // Of the wait.
	end     time.Duration // When it is over.
	answers chan answer
	last    int // The number of the last attempt.
	running int
	next    *time.Timer // Hands the wait over.
}

// acquire returns the leases of so many locks, and when the attempt that was granted them was sent.
func (c *Client) acquire(ctx context.Context, count int, limit time.Duration, send send) ([]*pb.Lease, time.Duration, error) {
	a := &acquisition{
		Client: c, caller: ctx, link: &c.pool.calls, send: send, count: count, limit: limit, end: now() + min(limit, forever-now()),
		answers: make(chan answer), next: time.NewTimer(handOver),
	}
	if limit > 0 {
		a.link = c.pool.waitLink()
		defer c.pool.leave(a.link)
	}
	defer a.next.Stop()
	a.ctx, a.cancel = c.until(ctx)
	elsewhere := len(c.pool.targets) - 1
	for retries := 1; ; retries++ {
		a.start()
		got, err := a.answer()
		if err == nil {
			c.work.Go(func() { a.finish(got.leases) })
			return got.leases, got.sent, nil
		}
		var failed *Error
		if !errors.As(err, &failed) {
			a.settle(true)
			return nil, 0, cmp.Or(c.ended(ctx), err)
		}
		wait := pause(retries, failed)
		switch {
		case limit == 0 && failed.unanswered() && retries < maxTries:
		case limit > 0 && (failed.retryable() || failed.full() || failed.Is(ErrTimeout)) && now()+wait < a.end:
			// A server also ends a wait at the deadline of its call, which is that of ctx if that is earlier.
		case limit > 0 && failed.unanswered() && elsewhere > 0: // A server that hangs takes the whole wait.
			elsewhere--
		default:
			a.settle(failed.unknown())
			return nil, 0, failed
		}
		if !sleep(a.ctx, wait) {
			a.settle(true)
			return nil, 0, c.ended(ctx)
		}
	}
}

// start sends the next attempt.
func (a *acquisition) start() {
	a.last, a.running = a.last+1, a.running+1
	a.next.Reset(handOver)
	number, sent, call := a.last, now(), attempt{link: a.link, limit: attemptLimit}
	if a.limit > 0 {
		// A wait never becomes a try, whose errors differ. One without an end asks for some time more than it has until the
		// next attempt takes it over.
		wait := max(a.end-sent, time.Millisecond)
		call.limit = min(wait, handOver) + attemptLimit
		if a.limit == forever {
			wait = handOver + 3*attemptLimit
		}
		call.wait = durationpb.New(wait)
	}
	go func() {
		leases, err := a.send(a.ctx, call)
		if err == nil && len(leases) != max(a.count, 1) {
			err = errIncomplete
		}
		a.answers <- answer{number, sent, leases, err}
	}()
}

// answer returns the grant of an attempt, or the error of the last one. It hands the wait over meanwhile.
func (a *acquisition) answer() (answer, error) {
	for {
		select {
		case <-a.ctx.Done():
			return answer{}, a.ctx.Err()
		case <-a.next.C:
			a.start()
		case got := <-a.answers:
			a.running--
			if got.err == nil || got.number == a.last { // The claim of an earlier one was taken over.
				return got, got.err
			}
		}
	}
}

// finish ends the attempts that go on after a grant. They have some time to find the granted claim.
func (a *acquisition) finish(granted []*pb.Lease) {
	late := time.AfterFunc(lateAnswer, a.cancel)
	a.drain(granted)
	late.Stop()
	a.cancel()
}

// drain waits for the attempts in flight, and releases what they are granted beside these leases: a store that remembers no
// requests grants each of them.
func (a *acquisition) drain(granted []*pb.Lease) {
	for ; a.running > 0; a.running-- {
		if got := <-a.answers; got.err == nil && (granted == nil || got.leases[0].GetLeaseId() != granted[0].GetLeaseId()) {
			a.release(context.WithoutCancel(a.ctx), got.leases)
		}
	}
}

// release gives leases back. What is not released ends with its TTL.
func (a *acquisition) release(ctx context.Context, leases []*pb.Lease) {
	for _, lease := range leases {
		req := &pb.ReleaseRequest{LeaseId: lease.GetLeaseId()}
		_ = a.call(ctx, releaseLimit, pb.LockService_Release_FullMethodName, req, &pb.ReleaseResponse{})
	}
}

// settle ends what is in flight. Attempts of unknown outcome may have been granted the locks.
func (a *acquisition) settle(unknown bool) {
	a.cancel()
	a.work.Go(func() {
		unknown = unknown || a.running > 0
		a.drain(nil)
		if unknown {
			a.undo()
		}
	})
}

// undo gives back what attempts of unknown outcome were granted: one more attempt finds it, or ends its wait.
func (a *acquisition) undo() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), callLimit)
	defer cancel()
	for n := 1; ; n++ {
		leases, err := a.send(ctx, attempt{link: a.link, limit: attemptLimit})
		var failed *Error
		switch {
		case err == nil:
			a.release(ctx, leases)
			return
		case !errors.As(err, &failed) || !failed.retryable() || !sleep(ctx, pause(n, failed)):
			return
		}
	}
}

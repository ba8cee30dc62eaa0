package fencepost

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

// Lock is a held lock. Its lease is renewed until it is released or lost, or the client closes.
type Lock struct {
	client *Client
	lease  *pb.Lease
	span   trace.Span
	ctx    context.Context // Ends when the lock is not held any more; its cause says why.
	cancel context.CancelCauseFunc
	end    atomic.Int64 // Until when the lease counts, on the clock of now.

	isReleased atomic.Bool

	// Guarded by the keeper.
	group     *group
	confirmed time.Duration // When the last confirmed renewal was sent, or the grant arrived.
	ttl       time.Duration
}

func newLock(c *Client, lease *pb.Lease, sent time.Duration, span trace.Span) *Lock {
	l := &Lock{client: c, lease: lease, span: span, confirmed: now(), ttl: lease.GetTtl().AsDuration()}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.end.Store(int64(sent + lease.GetWaited().AsDuration() + l.ttl))
	return l
}

// Name is the name of the lock.
func (l *Lock) Name() string { return l.lease.GetName() }

// Token is the fencing token, which rises with every grant of the lock. Send it with each write to the resource.
func (l *Lock) Token() uint64 { return l.lease.GetFencingToken() }

// Lease is what the server granted. Its lease_id is a secret: whoever knows it can release the lock.
func (l *Lock) Lease() *pb.Lease { return l.lease }

// Err is nil while the lock is held. Afterwards it is an [ErrLeaseLost], which after a release has the cause
// "released", or [ErrClosed]. It reads the clock, and is right also after the process was stopped.
func (l *Lock) Err() error {
	if l.ctx.Err() == nil && now() >= time.Duration(l.end.Load()) {
		l.lose(&Error{Reason: "LEASE_LOST", Cause: "unrenewed", Message: "no renewal was confirmed in time"})
	}
	return context.Cause(l.ctx)
}

// Check returns the token, or the error of [Lock.Err] if the lock is not held any more.
func (l *Lock) Check() (uint64, error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	return l.Token(), nil
}

// Done is closed when the lock is not held any more; then [Lock.Err] says why. A call reads the clock, and is right also
// after the process was stopped. Who waits for it learns of a suspend of the machine up to a second late.
func (l *Lock) Done() <-chan struct{} {
	_ = l.Err()
	return l.ctx.Done()
}

// OnLost calls f in a goroutine of its own when the lease is or may be lost, or the client closes, but not after a
// release. The returned function keeps f from being called, and returns false if it has been.
func (l *Lock) OnLost(f func(err error)) (stop func() bool) {
	return context.AfterFunc(l.ctx, func() {
		if err := context.Cause(l.ctx); err != errReleased {
			f(err)
		}
	})
}

// Context returns a context that ends with parent and when the lock is not held any more, with the error of [Lock.Err]
// as its cause.
func (l *Lock) Context(parent context.Context) (context.Context, context.CancelFunc) {
	return withLocks(parent, []*Lock{l})
}

// SetMetadata replaces what operators see of the lock, at most 16 entries and 4,096 bytes in all. It tries for 10 s.
func (l *Lock) SetMetadata(ctx context.Context, metadata map[string]string) error {
	req := &pb.UpdateMetadataRequest{LeaseId: l.lease.GetLeaseId(), Metadata: metadata}
	return l.client.call(ctx, callLimit, pb.LockService_UpdateMetadata_FullMethodName, req, &pb.UpdateMetadataResponse{})
}

// Release gives the lock back, within 5 s and the rest of the lease, or until ctx ends. A ctx that has already ended
// does not keep it from releasing. After a success, another Release does nothing.
//
// An [ErrLeaseLost] says that the lock was not held until now. After another error the release was not confirmed: the
// lease ends with its TTL, or by another Release.
func (l *Lock) Release(ctx context.Context) error {
	ctx, cancel := bounded(ctx, releaseLimit)
	defer cancel()
	return l.release(ctx, errReleased)
}

// release ends the lock for this cause.
func (l *Lock) release(ctx context.Context, cause error) error {
	if err := l.Err(); err != nil && (err != errReleased || l.isReleased.Load()) {
		if err == errReleased {
			return nil
		}
		return err
	}
	l.cancel(cause)
	l.client.keeper.forget(l)
	ctx, cancel := context.WithTimeout(ctx, min(releaseLimit, time.Duration(l.end.Load())-now()))
	defer cancel()
	req := &pb.ReleaseRequest{LeaseId: l.lease.GetLeaseId()}
	err := l.client.call(ctx, releaseLimit, pb.LockService_Release_FullMethodName, req, &pb.ReleaseResponse{})
	l.isReleased.Store(err == nil)
	return err
}

// releaseAll releases locks at once.
func releaseAll(ctx context.Context, locks []*Lock, cause error) error {
	errs := make([]error, len(locks))
	var all sync.WaitGroup
	for i, l := range locks {
		all.Go(func() { errs[i] = l.release(ctx, cause) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// lose ends the lock for this cause unless it has ended before.
func (l *Lock) lose(cause *Error) {
	l.cancel(cause)
	if context.Cause(l.ctx) != cause {
		return
	}
	if cause.Cause == "unrenewed" && l.client.begin() {
		go func() { // The server may count on the lease for longer. Nobody waits for the outcome: it ends with its TTL.
			defer l.client.work.Done()
			req := &pb.ReleaseRequest{LeaseId: l.lease.GetLeaseId()}
			_ = l.client.attempt(context.Background(), &l.client.pool.calls, releaseLimit, pb.LockService_Release_FullMethodName, req, &pb.ReleaseResponse{})
		}()
	}
	go func() { // A log handler and a tracer are the user's code.
		l.client.log.Warn("fencepost: lease lost", "namespace", l.lease.GetNamespace(), "lock", l.Name(), "token", l.Token(), "cause", cause.Cause)
		l.span.AddEvent("lost", trace.WithAttributes(
			attribute.String("fencepost.lock", l.Name()), attribute.String("fencepost.cause", cause.Cause)))
	}()
}

// blockContext is the context of a block that holds locks.
type blockContext struct {
	context.Context
	locks  []*Lock
	cancel context.CancelCauseFunc
}

func withLocks(parent context.Context, locks []*Lock) (*blockContext, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stops := make([]func() bool, len(locks))
	for i, l := range locks {
		stops[i] = context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	}
	return &blockContext{ctx, locks, cancel}, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(context.Canceled)
	}
}

// Done reads the clock, as Err does.
func (b *blockContext) Done() <-chan struct{} {
	_ = b.Err()
	return b.Context.Done()
}

// Err reads the clock, because a process that was stopped may read it before its timers run.
func (b *blockContext) Err() error {
	for _, l := range b.locks {
		if err := l.Err(); err != nil {
			b.cancel(err)
		}
	}
	return b.Context.Err()
}

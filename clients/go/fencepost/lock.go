package fencepost

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"runtime"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

// lease is what the session knows of a lock.
type lease struct {
	session    *session
	info       *pb.Lease
	span       trace.Span
	ctx        context.Context // Ends when the lock is not held any more; its cause says why.
	cancel     context.CancelCauseFunc
	end        atomic.Int64 // Until when the lease counts, on the clock of now.
	isReleased atomic.Bool

	// Guarded by the session.
	ttl       time.Duration
	confirmed time.Duration // When the last confirmation arrived.
	due       time.Duration // When it is renewed next.
	renewal   *command      // In flight.
	keepUntil time.Duration // That the lock stays taken after its release.
}

func newLease(s *session, info *pb.Lease, sent time.Duration, span trace.Span) *lease {
	l := &lease{session: s, info: info, span: span}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.confirm(sent+info.GetWaited().AsDuration(), info.GetTtl().AsDuration())
	return l
}

func (l *lease) id() string { return l.info.GetLeaseId() }

// confirm counts a TTL from then on.
func (l *lease) confirm(from, ttl time.Duration) {
	end := from + ttl - max(ttl/1000, 5*time.Millisecond) // Two clocks may differ by a thousandth.
	l.end.Store(max(l.end.Load(), int64(end)))
	l.ttl, l.confirmed, l.due = ttl, now(), from+time.Duration(float64(ttl)*renewalPart)
}

// tellAt is when a loss is told, so early that its holder can stop in time.
func (l *lease) tellAt() time.Duration {
	return time.Duration(l.end.Load()) - min(l.ttl/20, 250*time.Millisecond)
}

func (l *lease) err() error {
	if l.ctx.Err() == nil && now() >= time.Duration(l.end.Load()) {
		l.lose(unrenewed)
	}
	return context.Cause(l.ctx)
}

func (l *lease) lose(cause *Error) {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	l.session.lose(l, cause)
}

// giveBack is the command to release it.
func (l *lease) giveBack(limit time.Duration) *command {
	release := &pb.SessionCommand_Release{Release: &pb.ReleaseRequest{LeaseId: l.id()}}
	if left := l.keepUntil - now(); left > 0 {
		release.Release.KeepFor = durationpb.New(left)
	}
	return &command{message: &pb.SessionCommand{Command: release}, class: renewals, end: now() + limit}
}

// release ends the lock for this cause, and returns the command that does it, or its error.
func (l *lease) release(cause error) (*command, error) {
	if err := l.err(); err != nil && (err != errReleased || l.isReleased.Load()) {
		if err == errReleased {
			return nil, nil
		}
		return nil, err
	}
	s := l.session
	s.mu.Lock()
	defer s.mu.Unlock()
	c := l.giveBack(min(releaseLimit, time.Duration(l.end.Load())-now()))
	s.drop(l, cause)
	return s.add(c), nil
}

// releaseAll releases leases at once.
func releaseAll(ctx context.Context, leases []*lease, cause error) (err error) {
	commands := make([]*command, len(leases))
	for i, l := range leases {
		var failed error
		commands[i], failed = l.release(cause)
		err = joined(err, failed)
	}
	for i, c := range commands {
		if c != nil {
			failed := c.await(ctx)
			if refused, ok := errors.AsType[*Error](failed); ok && refused.Reason == "UNSUPPORTED" {
				failed = nil // The store keeps no lock after its release: the lease keeps it.
			}
			leases[i].isReleased.Store(failed == nil)
			err = joined(err, failed)
		}
	}
	return err
}

// joined is [errors.Join] which leaves a single error as it is.
func joined(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return errors.Join(a, b)
}

// Lock is a held lock. Its lease is renewed until it is released or lost, the client closes, or nothing refers to the Lock
// any more: then its loss is told and logged with the cause "dropped", and the lease ends with its TTL.
type Lock struct {
	lease   *lease
	cleanup runtime.Cleanup
}

func newLock(held *lease) *Lock {
	l := &Lock{lease: held}
	l.cleanup = runtime.AddCleanup(l, func(held *lease) { held.lose(dropped) }, held)
	return l
}

// Name is the name of the lock.
func (l *Lock) Name() string { return l.lease.info.GetName() }

// Token is the fencing token, which rises with every grant of the lock. Send it with each write to the resource.
func (l *Lock) Token() uint64 { return l.lease.info.GetFencingToken() }

// Lease is what the server granted. Its lease_id is a secret: whoever knows it can release the lock.
func (l *Lock) Lease() *pb.Lease { return l.lease.info }

// Err is nil while the lock is held. Afterwards it is an [ErrLeaseLost], which after a release has the cause
// "released", or [ErrClosed]. It reads the clock, and is right also after the process was stopped.
func (l *Lock) Err() error { return l.lease.err() }

// Check returns the token, or the error of [Lock.Err] if the lock is not held any more. It asks no server.
func (l *Lock) Check() (uint64, error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	return l.Token(), nil
}

// Remaining is how long the lock is held if no further renewal is confirmed; zero if it is not held any more.
func (l *Lock) Remaining() time.Duration {
	if l.Err() != nil {
		return 0
	}
	return max(time.Duration(l.lease.end.Load())-now(), 0)
}

// Extend renews the lease with another TTL. A server never shortens a lease. It tries for 10 s.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if err := l.Err(); err != nil {
		return err
	}
	renew := &pb.SessionCommand_Renew{Renew: &pb.RenewRequest{LeaseId: l.lease.id(), Ttl: durationpb.New(ttl)}}
	c, err := l.lease.session.do(ctx, renewals, &pb.SessionCommand{Command: renew})
	if err != nil {
		return err
	}
	s, given := l.lease.session, c.result.GetRenew().GetLease().GetTtl().AsDuration()
	if given <= 0 {
		return errIncomplete
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.lease.confirm(c.sent, given)
	s.lookBy(min(l.lease.due, l.lease.tellAt()))
	return nil
}

// keep makes the lock stay taken so long after its grant, also if the process ends. The next renewals are as they were.
func (l *Lock) keep(ctx context.Context, atLeast time.Duration) error {
	s := l.lease.session
	s.mu.Lock()
	ttl := l.lease.ttl
	l.lease.keepUntil = now() + atLeast
	s.mu.Unlock()
	if atLeast <= ttl {
		return nil
	}
	err := l.Extend(ctx, atLeast)
	if err == nil {
		return l.Extend(ctx, ttl)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.lease.keepUntil = 0
	return err
}

// Done is closed when the lock is not held any more; then [Lock.Err] says why. It is closed up to 250 ms before the lease
// ends, so that its holder can stop in time. A call reads the clock, and is right also after the process was stopped. Who
// waits for it learns of a suspend of the machine up to half a second late.
func (l *Lock) Done() <-chan struct{} {
	_ = l.Err()
	return l.lease.ctx.Done()
}

// OnLost calls f in a goroutine of its own when the lease is or may be lost, or the client closes, but not after a
// release. A panic of f is logged. The returned function keeps f from being called, and returns false if it has been.
func (l *Lock) OnLost(f func(err error)) (stop func() bool) {
	held := l.lease
	return context.AfterFunc(held.ctx, func() {
		if err := context.Cause(held.ctx); err != errReleased {
			held.session.guard(func() { f(err) })
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
	update := &pb.UpdateMetadataRequest{LeaseId: l.lease.id(), Metadata: maps.Clone(metadata)}
	_, err := l.lease.session.do(ctx, calls, &pb.SessionCommand{Command: &pb.SessionCommand_UpdateMetadata{UpdateMetadata: update}})
	return err
}

// Release gives the lock back, within 5 s and the rest of the lease, or until ctx ends. A ctx that has already ended
// does not keep it from releasing. After a success, another Release does nothing.
//
// An [ErrLeaseLost] says that the lock was not held until now. After another error the release was not confirmed: the
// lease ends with its TTL, or by another Release.
func (l *Lock) Release(ctx context.Context) error {
	ctx, cancel := bounded(ctx, releaseLimit)
	defer cancel()
	return releaseLocks(ctx, []*Lock{l})
}

func releaseLocks(ctx context.Context, locks []*Lock) error {
	leases := make([]*lease, len(locks))
	for i, l := range locks {
		l.cleanup.Stop()
		leases[i] = l.lease
	}
	return releaseAll(ctx, leases, errReleased)
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
		held := l.lease
		stops[i] = context.AfterFunc(held.ctx, func() { cancel(context.Cause(held.ctx)) })
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

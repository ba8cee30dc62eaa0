package fencepost

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

const forever = time.Duration(math.MaxInt64)

// LockOption is a property of one lock.
type LockOption func(*request)

type request struct {
	ttl       *durationpb.Duration
	wait      time.Duration
	mode      *pb.Mode
	owner     string
	reentrant bool
	metadata  map[string]string
	value     string
}

// Wait waits up to d in the lock's queue. Without it, the lock is tried once, and fails with [ErrLocked] if it is held.
func Wait(d time.Duration) LockOption { return func(r *request) { r.wait = d } }

// WaitForever waits until the lock is granted or the context ends.
func WaitForever() LockOption { return Wait(forever) }

// TTL sets how long the lease lives after the grant and after each renewal; without it, the namespace's default.
// A third of it is the interval between renewals.
func TTL(d time.Duration) LockOption { return func(r *request) { r.ttl = durationpb.New(d) } }

// Exclusive excludes all other claims. It is the default.
func Exclusive() LockOption {
	return mode(&pb.Mode{Kind: &pb.Mode_Exclusive_{Exclusive: &pb.Mode_Exclusive{}}})
}

// Shared shares the lock with other shared claims, as readers do.
func Shared() LockOption { return mode(&pb.Mode{Kind: &pb.Mode_Shared_{Shared: &pb.Mode_Shared{}}}) }

// Semaphore takes so many permits of a limit, 1 to 1,000,000. Where claims name different limits, the smallest counts.
func Semaphore(permits, limit uint32) LockOption {
	return mode(&pb.Mode{Kind: &pb.Mode_Semaphore_{Semaphore: &pb.Mode_Semaphore{Permits: permits, Limit: limit}}})
}

func mode(m *pb.Mode) LockOption { return func(r *request) { r.mode = m } }

// Reentrant adds a hold to a lock that the same owner holds as reentrant too, which is then free when each hold is
// released. The owner must name what may enter again, such as one job: Go has no identity of a goroutine to take.
func Reentrant(owner string) LockOption {
	return func(r *request) { r.owner, r.reentrant = owner, true }
}

// Metadata is shown to operators, at most 16 entries and 4,096 bytes in all.
func Metadata(metadata map[string]string) LockOption {
	return func(r *request) { r.metadata = metadata }
}

// Do holds a lock while f runs. It releases the lock however f ends: by its return, a panic or [runtime.Goexit].
//
// The context of f ends with ctx and when the lease is or may be lost; [context.Cause] is then an [ErrLeaseLost], which
// Do returns, joined with another error of f. It returns an error too if the release was not confirmed within 5 s and
// the rest of the lease, which then ends with its TTL. Of a panic such an error is only logged.
func (c *Client) Do(ctx context.Context, name string, f func(ctx context.Context, lock *Lock) error, options ...LockOption) error {
	lock, err := c.Acquire(ctx, name, options...)
	if err != nil {
		return err
	}
	return c.hold(ctx, []*Lock{lock}, func(ctx context.Context) error { return f(ctx, lock) })
}

// DoAll is [Client.Do] with several locks, as [Client.AcquireAll] takes them.
func (c *Client) DoAll(ctx context.Context, names []string, f func(ctx context.Context, locks []*Lock) error, options ...LockOption) error {
	locks, err := c.AcquireAll(ctx, names, options...)
	if err != nil {
		return err
	}
	return c.hold(ctx, locks, func(ctx context.Context) error { return f(ctx, locks) })
}

func (c *Client) hold(ctx context.Context, locks []*Lock, f func(context.Context) error) (err error) {
	block, cancel := withLocks(ctx, locks)
	returned := false
	defer func() {
		lost := block.Err() != nil && ctx.Err() == nil
		cancel()
		released := releaseAll(context.WithoutCancel(ctx), locks, errReleased)
		switch {
		case released == nil:
		case !returned: // f panics or ends its goroutine.
			c.log.Warn("fencepost: release failed", "error", released)
		case err == nil || lost && errors.Is(err, context.Canceled):
			err = released
		default:
			err = errors.Join(err, released)
		}
	}()
	err = f(block)
	returned = true
	return err
}

// Acquire takes a lock. The caller releases it with [Lock.Release]; until then, its lease is renewed. [Client.Do] is
// safer.
//
// When ctx ends first, Acquire returns its error at once, and what the server may have granted meanwhile is released in
// the background. It returns [ErrLocked], [ErrTimeout], [ErrClosed] or an [*Error] otherwise. While no server answers,
// it tries again within the wait, without a wait three times.
func (c *Client) Acquire(ctx context.Context, name string, options ...LockOption) (*Lock, error) {
	r := c.request(options)
	req := &pb.AcquireRequest{
		Namespace: c.namespace, Name: name, Owner: r.owner, Ttl: r.ttl, Mode: r.mode, RequestId: rand.Text(),
		Reentrant: r.reentrant, Metadata: r.metadata,
	}
	locks, err := c.take(ctx, []string{name}, r, func(ctx context.Context, attempt attempt) ([]*pb.Lease, error) {
		req, resp := proto.CloneOf(req), &pb.AcquireResponse{}
		req.Wait = attempt.wait
		err := c.attempt(ctx, attempt.link, attempt.limit, pb.LockService_Acquire_FullMethodName, req, resp)
		return granted(resp.Lease), err
	})
	if err != nil {
		return nil, err
	}
	return locks[0], nil
}

// AcquireAll takes 1 to 64 locks of different names, all or none, and returns them in the order of the names. Calls
// that take some of the same locks do not deadlock. Otherwise it is as [Client.Acquire]; the entry "name" of an
// [Error]'s metadata is the lock that failed. Re-entry is not possible.
func (c *Client) AcquireAll(ctx context.Context, names []string, options ...LockOption) ([]*Lock, error) {
	if len(names) == 1 {
		lock, err := c.Acquire(ctx, names[0], options...)
		if err != nil {
			return nil, err
		}
		return []*Lock{lock}, nil
	}
	r := c.request(options)
	req := &pb.AcquireAllRequest{
		Namespace: c.namespace, Owner: r.owner, Ttl: r.ttl, RequestId: rand.Text(), Metadata: r.metadata,
	}
	for _, name := range names {
		req.Locks = append(req.Locks, &pb.LockToAcquire{Name: name, Mode: r.mode})
	}
	return c.take(ctx, names, r, func(ctx context.Context, attempt attempt) ([]*pb.Lease, error) {
		req, resp := proto.CloneOf(req), &pb.AcquireAllResponse{}
		req.Wait = attempt.wait
		err := c.attempt(ctx, attempt.link, attempt.limit, pb.LockService_AcquireAll_FullMethodName, req, resp)
		return resp.Leases, err
	})
}

func (c *Client) request(options []LockOption) *request {
	r := &request{owner: c.owner}
	for _, option := range options {
		option(r)
	}
	return r
}

// granted is the lease of an answer, if it has one.
func granted(lease *pb.Lease) []*pb.Lease {
	if lease == nil {
		return nil
	}
	return []*pb.Lease{lease}
}

// take sends attempts until the locks are granted or cannot be.
func (c *Client) take(ctx context.Context, names []string, r *request, send send) ([]*Lock, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !c.begin() {
		return nil, ErrClosed
	}
	defer c.work.Done()
	parent := trace.SpanFromContext(ctx)
	ctx, span := otel.Tracer("github.com/fencepost/fencepost/clients/go").Start(ctx, "fencepost.acquire", trace.WithAttributes(
		attribute.String("fencepost.namespace", c.namespace), attribute.String("fencepost.lock", strings.Join(names, ", ")),
		attribute.Float64("fencepost.wait_limit_s", r.wait.Seconds())))
	defer span.End()
	leases, sent, err := c.acquire(ctx, len(names), r.wait, send)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		return nil, err
	}
	locks := make([]*Lock, len(leases))
	for i, lease := range leases {
		locks[i] = newLock(c, lease, sent, parent)
	}
	span.SetAttributes(attribute.Float64("fencepost.waited_s", leases[0].GetWaited().AsDuration().Seconds()))
	if !c.keeper.add(locks) {
		_ = releaseAll(context.WithoutCancel(ctx), locks, ErrClosed)
		return nil, ErrClosed
	}
	return locks, nil
}

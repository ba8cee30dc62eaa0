package fencepost

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
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
	atLeast   time.Duration
}

// Wait waits up to d in the lock's queue. Without it, the lock is tried once, and fails with [ErrLocked] if it is held.
func Wait(d time.Duration) LockOption { return func(r *request) { r.wait = d } }

// WaitForever waits until the lock is granted or the context ends.
func WaitForever() LockOption { return Wait(forever) }

// TTL sets how long the lease lives after the grant and after each renewal; without it, the namespace's default.
// A third of it is the interval between renewals.
func TTL(d time.Duration) LockOption { return func(r *request) { r.ttl = durationpb.New(d) } }

// AtLeast keeps the lock taken for d after its grant, also if it is released sooner or its process ends, so that a job which
// is started at several places runs once. An acquire with a d above the namespace's largest TTL fails.
func AtLeast(d time.Duration) LockOption { return func(r *request) { r.atLeast = d } }

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
	metadata = maps.Clone(metadata)
	return func(r *request) { r.metadata = metadata }
}

// Do is [NamedLock.Do] of the lock with this name.
func (c *Client) Do(ctx context.Context, name string, f func(ctx context.Context, lock *Lock) error, options ...LockOption) error {
	return c.Lock(name, options...).Do(ctx, f)
}

// NamedLock is a lock by its name, to be taken any number of times. As a [sync.Locker] it waits for ever.
type NamedLock struct {
	client  *Client
	name    string
	options []LockOption
	mu      sync.Mutex
	held    []*Lock // By Lock.
}

// Lock names a lock. It is taken by the methods of the result.
func (c *Client) Lock(name string, options ...LockOption) *NamedLock {
	return &NamedLock{client: c, name: name, options: options}
}

// Acquire is [Client.Acquire] of the lock.
func (n *NamedLock) Acquire(ctx context.Context) (*Lock, error) {
	return n.client.Acquire(ctx, n.name, n.options...)
}

// Lock implements [sync.Locker]: it waits until the lock is granted, and panics with an error that no repetition helps, such
// as [ErrClosed] or [ErrDenied]. Nothing tells a loss of the lease; where that matters, use [NamedLock.Do].
func (n *NamedLock) Lock() {
	options := append(n.options[:len(n.options):len(n.options)], WaitForever())
	lock, err := n.client.Acquire(context.Background(), n.name, options...)
	if err != nil {
		panic(fmt.Errorf("fencepost: lock %q: %w", n.name, err))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = append(n.held, lock)
}

// Unlock implements [sync.Locker]. A release that is not confirmed within 5 s is logged, and so is a loss before it. It
// panics if Lock was not called before.
func (n *NamedLock) Unlock() {
	n.mu.Lock()
	if len(n.held) == 0 {
		n.mu.Unlock()
		panic(fmt.Sprintf("fencepost: unlock of %q, which is not locked", n.name))
	}
	lock := n.held[len(n.held)-1]
	n.held = n.held[:len(n.held)-1]
	n.mu.Unlock()
	if err := lock.Release(context.Background()); err != nil {
		n.client.session.warnUnreleased(err)
	}
}

// Do holds the lock while f runs. It releases the lock however f ends: by its return, a panic or [runtime.Goexit].
//
// The context of f ends with ctx and when the lease is or may be lost; [context.Cause] is then an [ErrLeaseLost], which
// Do returns, joined with another error of f. It returns an error too if the release was not confirmed within 5 s and
// the rest of the lease, which then ends with its TTL. Of a panic such an error is only logged.
func (n *NamedLock) Do(ctx context.Context, f func(ctx context.Context, lock *Lock) error) error {
	lock, err := n.Acquire(ctx)
	if err != nil {
		return err
	}
	return n.client.hold(ctx, []*Lock{lock}, func(ctx context.Context) error { return f(ctx, lock) })
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
		released := releaseLocks(context.WithoutCancel(ctx), locks)
		switch {
		case released == nil:
		case !returned: // f panics or ends its goroutine.
			c.session.warnUnreleased(released)
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

func (s *session) warnUnreleased(err error) {
	go s.guard(func() { s.log.Warn("fencepost: release failed", "error", err) })
}

// Acquire takes a lock. The caller releases it with [Lock.Release]; until then, its lease is renewed. [Client.Do] is
// safer.
//
// When ctx ends first, Acquire returns its error at once, and what the server may have granted meanwhile is released in
// the background. It returns [ErrLocked], [ErrTimeout], [ErrDenied], [ErrUnauthenticated], [ErrClosed] or an [*Error]
// otherwise. While no server answers, it tries again within the wait, without a wait three times.
func (c *Client) Acquire(ctx context.Context, name string, options ...LockOption) (*Lock, error) {
	return one(c.AcquireAll(ctx, []string{name}, options...))
}

func one(locks []*Lock, err error) (*Lock, error) {
	if err != nil {
		return nil, err
	}
	return locks[0], nil
}

// AcquireAll takes 1 to 64 locks of different names, all or none, and returns them in the order of the names. Calls
// that take some of the same locks do not deadlock. Otherwise it is as [Client.Acquire]; the entry "name" of an
// [Error]'s metadata is the lock that failed. Re-entry is possible to one lock alone.
func (c *Client) AcquireAll(ctx context.Context, names []string, options ...LockOption) ([]*Lock, error) {
	r, s := c.request(options), c.session
	if len(names) == 1 {
		req := &pb.AcquireRequest{
			Namespace: s.namespace, Name: names[0], Owner: r.owner, Ttl: r.ttl, Mode: r.mode, RequestId: rand.Text(),
			Reentrant: r.reentrant, Metadata: r.metadata,
		}
		acquire := &pb.SessionCommand_Acquire_{Acquire: &pb.SessionCommand_Acquire{Request: req, Keep: true}}
		return c.take(ctx, names, r, &pb.SessionCommand{Command: acquire})
	}
	req := &pb.AcquireAllRequest{Namespace: s.namespace, Owner: r.owner, Ttl: r.ttl, RequestId: rand.Text(), Metadata: r.metadata}
	for _, name := range names {
		req.Locks = append(req.Locks, &pb.LockToAcquire{Name: name, Mode: r.mode})
	}
	acquire := &pb.SessionCommand_AcquireAll_{AcquireAll: &pb.SessionCommand_AcquireAll{Request: req, Keep: true}}
	return c.take(ctx, names, r, &pb.SessionCommand{Command: acquire})
}

func (c *Client) request(options []LockOption) *request {
	r := &request{owner: c.session.owner}
	for _, option := range options {
		if option != nil {
			option(r)
		}
	}
	return r
}

var tracer = otel.Tracer("github.com/fencepost/fencepost/clients/go")

// take sends an acquire until the locks are granted or cannot be.
func (c *Client) take(ctx context.Context, names []string, r *request, message *pb.SessionCommand) ([]*Lock, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, begin := c.session, now()
	cmd := &command{
		message: message, class: calls, end: begin + callLimit, tries: max(maxTries, len(s.targets)), longest: maxWait,
		span: trace.SpanFromContext(ctx), isAcquire: true, count: len(names),
	}
	if r.wait > 0 {
		cmd.class, cmd.tries = waits, 0
		cmd.waitEnd = begin + min(r.wait, forever-begin-attemptLimit)
		cmd.end = cmd.waitEnd + attemptLimit
	}
	span := trace.SpanFromContext(context.Background())
	s.guard(func() {
		_, span = tracer.Start(ctx, "fencepost.acquire", trace.WithAttributes(
			attribute.String("fencepost.namespace", s.namespace), attribute.String("fencepost.lock", strings.Join(names, ", ")),
			attribute.Float64("fencepost.wait_limit_s", r.wait.Seconds())))
	})
	err := s.send(cmd)
	if err == nil {
		if err = cmd.await(ctx); err != nil && err == ctx.Err() {
			s.mu.Lock()
			s.abandon(cmd)
			s.mu.Unlock()
		}
	}
	s.guard(func() {
		defer span.End()
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		} else {
			span.SetAttributes(attribute.Float64("fencepost.waited_s", cmd.leases[0].info.GetWaited().AsDuration().Seconds()))
		}
	})
	if err != nil {
		return nil, err
	}
	locks := make([]*Lock, len(cmd.leases))
	for i, l := range cmd.leases {
		locks[i] = newLock(l)
	}
	for _, l := range locks {
		if err := l.keep(ctx, r.atLeast); err != nil {
			return nil, joined(err, releaseLocks(context.WithoutCancel(ctx), locks))
		}
	}
	return locks, nil
}

package fencepost

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

// Leadership is the lock of an election's leader. The election is the exclusive lock of the same name.
type Leadership struct{ *Lock }

// Proclaim replaces the value that observers see, at most 4,096 bytes. It tries for 10 s, and fails with [ErrLeaseLost]
// if the leadership has ended.
func (l *Leadership) Proclaim(ctx context.Context, value string) error {
	req := &pb.ProclaimRequest{LeaseId: l.lease.GetLeaseId(), Value: value}
	return l.client.call(ctx, callLimit, pb.ElectionService_Proclaim_FullMethodName, req, &pb.ProclaimResponse{})
}

// Value is what observers of an election see of this candidate when it leads, at most 4,096 bytes.
func Value(value string) LockOption { return func(r *request) { r.value = value } }

// Campaign becomes the leader of an election, as [Client.Acquire] takes a lock; of the options, [Wait], [WaitForever],
// [TTL] and [Value] count. The leadership ends with [Lock.Release].
func (c *Client) Campaign(ctx context.Context, election string, options ...LockOption) (*Leadership, error) {
	r := c.request(options)
	req := &pb.CampaignRequest{
		Namespace: c.namespace, Election: election, Candidate: r.owner, Value: r.value, Ttl: r.ttl, RequestId: rand.Text(),
	}
	locks, err := c.take(ctx, []string{election}, r, func(ctx context.Context, attempt attempt) ([]*pb.Lease, error) {
		req, resp := proto.CloneOf(req), &pb.CampaignResponse{}
		req.Wait = attempt.wait
		err := c.attempt(ctx, attempt.link, attempt.limit, pb.ElectionService_Campaign_FullMethodName, req, resp)
		return granted(resp.Leadership), err
	})
	if err != nil {
		return nil, err
	}
	return &Leadership{locks[0]}, nil
}

// Callbacks are the work of a leader.
type Callbacks struct {
	// OnElected is the work. Its context ends when the leadership is or may be lost, and with that of Lead. The
	// leadership is given back when it returns.
	OnElected func(ctx context.Context, leadership *Leadership) error
	// OnDeposed, which may be nil, is called after OnElected has returned and the leadership has ended, with the error
	// that Lead returns or [ErrLeaseLost].
	OnDeposed func(err error)
}

// Lead campaigns until it leads, runs OnElected, and campaigns again whenever the leadership is lost. It returns when
// OnElected returns while it leads, with its error, when ctx ends, or with an error that no repetition helps.
func (c *Client) Lead(ctx context.Context, election string, callbacks Callbacks, options ...LockOption) error {
	options = append(options[:len(options):len(options)], WaitForever())
	for {
		leadership, err := c.Campaign(ctx, election, options...)
		if err != nil {
			return err
		}
		err = c.hold(ctx, []*Lock{leadership.Lock}, func(ctx context.Context) error { return callbacks.OnElected(ctx, leadership) })
		if callbacks.OnDeposed != nil {
			callbacks.OnDeposed(err)
		}
		if !errors.Is(err, ErrLeaseLost) {
			return err
		}
	}
}

// Leader returns the leader of an election, nil if nobody leads. It tries for 10 s.
func (c *Client) Leader(ctx context.Context, election string) (*pb.Leader, error) {
	resp := &pb.GetLeaderResponse{}
	req := &pb.GetLeaderRequest{Namespace: c.namespace, Election: election}
	err := c.call(ctx, callLimit, pb.ElectionService_GetLeader_FullMethodName, req, resp)
	return resp.Leader, err
}

// Observe yields the leader of an election, nil if nobody leads, and then each change of the leader or its value. It
// goes on when a server stops, and never goes back to an older leader; some may be left out. It ends with the error of
// ctx when that ends, with [ErrClosed], or with an error that no repetition helps.
func (c *Client) Observe(ctx context.Context, election string) iter.Seq2[*pb.Leader, error] {
	messages := follow(c, ctx, func(ctx context.Context, conn grpc.ClientConnInterface) (grpc.ServerStreamingClient[pb.ObserveResponse], error) {
		return pb.NewElectionServiceClient(conn).Observe(ctx, &pb.ObserveRequest{Namespace: c.namespace, Election: election})
	})
	return func(yield func(*pb.Leader, error) bool) {
		var newest uint64 // The largest token so far.
		var last *pb.Leader
		first := true
		for message, err := range messages {
			leader := message.GetLeader()
			// A stream that begins again repeats what was seen, and another server may be behind.
			stale := leader != nil && leader.GetFencingToken() < newest
			same := !first && (leader == nil) == (last == nil) && leader.GetFencingToken() == last.GetFencingToken() &&
				leader.GetValue() == last.GetValue()
			if err == nil && (stale || same) {
				continue
			}
			if !yield(leader, err) {
				return
			}
			first, last, newest = false, leader, max(newest, leader.GetFencingToken())
		}
	}
}

// Get returns the holders and waiters of a lock. It tries for 10 s.
func (c *Client) Get(ctx context.Context, name string) (*pb.LockState, error) {
	resp := &pb.GetLockResponse{}
	req := &pb.GetLockRequest{Namespace: c.namespace, Name: name}
	err := c.call(ctx, callLimit, pb.LockService_GetLock_FullMethodName, req, resp)
	if err == nil && resp.Lock == nil {
		err = errIncomplete
	}
	return resp.Lock, err
}

// Check tells whether a fencing token holds a lock now. It tries for 10 s.
func (c *Client) Check(ctx context.Context, name string, token uint64) (bool, error) {
	resp := &pb.CheckTokenResponse{}
	req := &pb.CheckTokenRequest{Namespace: c.namespace, Name: name, FencingToken: token}
	err := c.call(ctx, callLimit, pb.LockService_CheckToken_FullMethodName, req, resp)
	return resp.Held, err
}

// Watch yields the state of a lock, and then each change; after a gap, the full state again. It ends as
// [Client.Observe] does.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[*pb.WatchLockResponse, error] {
	return follow(c, ctx, func(ctx context.Context, conn grpc.ClientConnInterface) (grpc.ServerStreamingClient[pb.WatchLockResponse], error) {
		return pb.NewLockServiceClient(conn).WatchLock(ctx, &pb.WatchLockRequest{Namespace: c.namespace, Name: name})
	})
}

type opener[M any] func(context.Context, grpc.ClientConnInterface) (grpc.ServerStreamingClient[M], error)

// follow yields the messages of a stream, and opens it again while no server serves it.
func follow[M any](c *Client, parent context.Context, open opener[M]) iter.Seq2[*M, error] {
	return func(yield func(*M, error) bool) {
		ctx, cancel := c.until(parent)
		defer cancel()
		l := c.pool.waitLink()
		defer c.pool.leave(l)
		for failures := 1; ; failures++ {
			worked, err := receive(c, ctx, l, open, yield)
			if err == nil {
				return
			}
			if worked {
				failures = 1
			}
			var failed *Error
			if !errors.As(err, &failed) || !failed.retryable() || !sleep(ctx, pause(failures, failed)) {
				yield(nil, cmp.Or(c.ended(parent), err))
				return
			}
		}
	}
}

// receive returns no error if the caller has enough.
func receive[M any](c *Client, ctx context.Context, l *link, open opener[M], yield func(*M, error) bool) (worked bool, err error) {
	conn, err := c.pool.use(l)
	if err != nil {
		return false, err
	}
	defer func() { c.pool.done(conn, worked) }()
	stream, err := open(ctx, conn)
	if err != nil {
		return false, c.failed(ctx, conn, err, nil)
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return worked, c.failed(ctx, conn, err, stream.Trailer())
		}
		if worked = true; !yield(message, nil) {
			return worked, nil
		}
	}
}

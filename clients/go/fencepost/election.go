package fencepost

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

// Leadership is the lock of an election's leader. The election is the exclusive lock of the same name.
type Leadership struct{ *Lock }

// Proclaim replaces the value that observers see, at most 4,096 bytes. It tries for 10 s, and fails with [ErrLeaseLost]
// if the leadership has ended.
func (l *Leadership) Proclaim(ctx context.Context, value string) error {
	proclaim := &pb.SessionCommand_Proclaim_{Proclaim: &pb.SessionCommand_Proclaim{LeaseId: l.lease.id(), Value: value}}
	_, err := l.lease.session.do(ctx, calls, &pb.SessionCommand{Command: proclaim})
	return err
}

// Value is what observers of an election see of this candidate when it leads, at most 4,096 bytes.
func Value(value string) LockOption { return func(r *request) { r.value = value } }

// Campaign becomes the leader of an election, as [Client.Acquire] takes a lock; of the options, [Wait], [WaitForever],
// [TTL] and [Value] count. The leadership ends with [Lock.Release].
func (c *Client) Campaign(ctx context.Context, election string, options ...LockOption) (*Leadership, error) {
	r := c.request(options)
	campaign := &pb.SessionCommand_Campaign_{Campaign: &pb.SessionCommand_Campaign{
		Namespace: c.session.namespace, Election: election, Candidate: r.owner, Value: r.value, Ttl: r.ttl, RequestId: rand.Text(),
		Keep: true,
	}}
	lock, err := one(c.take(ctx, []string{election}, r, &pb.SessionCommand{Command: campaign}))
	if err != nil {
		return nil, err
	}
	return &Leadership{lock}, nil
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
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	for leader, err := range c.Observe(limited, election) {
		if err == context.DeadlineExceeded && ctx.Err() == nil {
			c.session.mu.Lock()
			err = c.session.unanswered()
			c.session.mu.Unlock()
		}
		return leader, err
	}
	return nil, errIncomplete
}

// Observe yields the leader of an election, nil if nobody leads, and then each change of the leader or its value. It
// goes on when a server stops, and never goes back to an older leader; some may be left out. It ends with the error of
// ctx when that ends, with [ErrClosed], or with an error that no repetition helps.
func (c *Client) Observe(ctx context.Context, election string) iter.Seq2[*pb.Leader, error] {
	return func(yield func(*pb.Leader, error) bool) {
		observe := &pb.SessionCommand_Observe_{Observe: &pb.SessionCommand_Observe{Namespace: c.session.namespace, Election: election}}
		var newest uint64 // The largest token so far.
		var last *pb.Leader
		first := true
		err := c.session.follow(ctx, &pb.SessionCommand{Command: observe}, func(event *pb.SessionEvent) bool {
			leader := leaderOf(event.GetObserved().GetLeader())
			// A stream that begins again repeats what was seen, and another server may be behind.
			stale := leader != nil && leader.GetFencingToken() < newest
			same := !first && (leader == nil) == (last == nil) && leader.GetFencingToken() == last.GetFencingToken() &&
				leader.GetValue() == last.GetValue()
			if stale || same {
				return true
			}
			first, last, newest = false, leader, max(newest, leader.GetFencingToken())
			return yield(leader, nil)
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

func leaderOf(l *pb.SessionEvent_Leader) *pb.Leader {
	if l == nil {
		return nil
	}
	return &pb.Leader{
		Candidate: l.GetCandidate(), FencingToken: l.GetFencingToken(), Value: l.GetValue(), RemainingTtl: l.GetRemainingTtl(),
		Since: l.GetSince(), Identity: l.GetIdentity(),
	}
}

// Watch yields the state of a lock, and then each change; after a gap, the full state again. It ends as
// [Client.Observe] does.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[*pb.WatchLockResponse, error] {
	return func(yield func(*pb.WatchLockResponse, error) bool) {
		watch := &pb.SessionCommand_WatchLock{WatchLock: &pb.WatchLockRequest{Namespace: c.session.namespace, Name: name}}
		err := c.session.follow(ctx, &pb.SessionCommand{Command: watch}, func(event *pb.SessionEvent) bool { return yield(event.GetWatched().GetMessage(), nil) })
		if err != nil {
			yield(nil, err)
		}
	}
}

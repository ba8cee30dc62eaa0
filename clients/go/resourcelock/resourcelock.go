// Package resourcelock lets client-go's leader election, and with it controller-runtime, elect its leader in Fencepost.
//
//	manager, err := ctrl.NewManager(config, ctrl.Options{
//		LeaderElection:                      true,
//		LeaderElectionID:                    "my-controller",
//		LeaderElectionResourceLockInterface: resourcelock.New(client, "my-controller", hostname),
//	})
package resourcelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/fencepost/fencepost/clients/go/fencepost"
)

type lock struct {
	client             *fencepost.Client
	election, identity string

	mu         sync.Mutex
	leadership *fencepost.Leadership // nil if this process does not lead.
	duration   time.Duration
	lostAt     time.Time
	expiry     *time.Timer
}

// New returns a lock over an election, whose value is the record of client-go's leader election. The identity must
// differ between the candidates. Its TTL is the LeaseDuration of the election.
//
// The client renews the leadership. It ends when the election stops updating its record for its LeaseDuration, as a
// Lease object of Kubernetes does. After a loss the lock is not taken again for this time, so that the election notices
// it and stops the work. Nothing is recorded as an event.
func New(client *fencepost.Client, election, identity string) resourcelock.Interface {
	return &lock{client: client, election: election, identity: identity}
}

// Identity implements [resourcelock.Interface].
func (l *lock) Identity() string { return l.identity }

// Describe implements [resourcelock.Interface].
func (l *lock) Describe() string { return "fencepost/" + l.election }

// RecordEvent implements [resourcelock.Interface].
func (l *lock) RecordEvent(string) {}

// Get implements [resourcelock.Interface]: a NotFound error says that nobody leads.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	leader, err := l.client.Leader(ctx, l.election)
	if err != nil {
		return nil, nil, err
	}
	if leader == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Group: "fencepost", Resource: "elections"}, l.election)
	}
	record := &resourcelock.LeaderElectionRecord{}
	if json.Unmarshal([]byte(leader.GetValue()), record) != nil {
		record.HolderIdentity = leader.GetCandidate() // A leader of another program.
	}
	// The token is part of it, so that a new leader is a new record.
	return record, fmt.Appendf(nil, "%d %s", leader.GetFencingToken(), leader.GetValue()), nil
}

// Create implements [resourcelock.Interface]: it leads, or fails if somebody does.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update implements [resourcelock.Interface]: it leads with this record, or gives the leadership back if the record names
// no holder.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leadership != nil && l.leadership.Err() != nil {
		l.leadership, l.lostAt = nil, time.Now()
	}
	if record.HolderIdentity != l.identity {
		return l.release(ctx)
	}
	if time.Since(l.lostAt) < l.duration {
		return fencepost.ErrLeaseLost
	}
	value, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if l.leadership != nil {
		err = l.leadership.Proclaim(ctx, string(value))
		if err == nil && !l.expiry.Stop() { // It has begun to release the leadership.
			l.leadership, l.lostAt = nil, time.Now()
			return fencepost.ErrLeaseLost
		}
	} else {
		l.duration = time.Duration(record.LeaseDurationSeconds) * time.Second
		l.leadership, err = l.client.Campaign(ctx, l.election, fencepost.Value(string(value)), fencepost.TTL(l.duration))
	}
	if err == nil {
		leadership := l.leadership
		l.expiry = time.AfterFunc(l.duration, func() { _ = leadership.Release(context.Background()) })
	}
	return err
}

func (l *lock) release(ctx context.Context) error {
	if l.leadership == nil {
		return nil
	}
	l.expiry.Stop()
	err := l.leadership.Release(ctx)
	if err == nil || errors.Is(err, fencepost.ErrLeaseLost) {
		l.leadership = nil
		return nil
	}
	return err
}

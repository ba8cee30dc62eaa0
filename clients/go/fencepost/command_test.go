package fencepost

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"go.opentelemetry.io/otel/trace"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

// withheld are results that are sent later.
type withheld struct {
	mu     sync.Mutex
	events []*pb.SessionEvent
}

func (w *withheld) add(event *pb.SessionEvent) *pb.SessionEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event)
	return unanswered
}

func (w *withheld) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events)
}

// sendWith makes a server send them.
func (w *withheld) sendWith(f *fake) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late, w.events = append(f.late, w.events...), nil
}

func renewal(c *pb.SessionCommand, ttl time.Duration) *pb.SessionEvent {
	renewed := &pb.RenewResponse{Lease: grants(ttl, c.GetRenew().GetLeaseId()).GetAcquire().GetLease()}
	return resultOf(c, &pb.SessionEvent_CommandResult{Outcome: &pb.SessionEvent_CommandResult_Renew{Renew: renewed}})
}

func TestACommandThatTimedOutMakesRoomWhenItsResultComes(t *testing.T) {
	t.Parallel()
	var releases withheld
	const ttl = time.Second
	f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
		switch {
		case c.GetAcquire() != nil:
			return resultOf(c, grants(ttl, c.GetAcquire().GetRequest().GetName()))
		case c.GetRenew() != nil:
			return renewal(c, ttl)
		case c.GetRelease() != nil && c.GetRelease().GetLeaseId() != "kept":
			return releases.add(resultOf(c, nil))
		}
		return nil
	}}
	client := f.start(t)
	var group sync.WaitGroup
	for i := range limits[renewals] {
		group.Go(func() {
			if lock, err := client.Acquire(t.Context(), fmt.Sprint(i)); err != nil {
				t.Error(err)
			} else if err := lock.Release(t.Context()); err == nil {
				t.Error("a release without a result is confirmed")
			}
		})
	}
	group.Wait()
	releases.sendWith(f)
	lock, err := client.Acquire(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * ttl) // Time is the matter.
	if err := lock.Err(); err != nil {
		t.Error(err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCommandsThatWereGivenUpBeforeTheyWereSentHoldNoOthersUp(t *testing.T) {
	t.Parallel()
	var acquires withheld
	f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
		switch name := c.GetAcquire().GetRequest().GetName(); name {
		case "":
			return nil
		case "first":
			return acquires.add(resultOf(c, grants(time.Minute, "first")))
		default:
			return resultOf(c, grants(time.Minute, name))
		}
	}}
	client := f.start(t)
	acquire := func(group *sync.WaitGroup, ctx context.Context, name string) {
		group.Go(func() { _, _ = client.Acquire(ctx, name) })
	}
	pending := func(want int) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			client.session.mu.Lock()
			acquires := 0
			for _, c := range client.session.pending {
				if c.isAcquire {
					acquires++
				}
			}
			client.session.mu.Unlock()
			if acquires == want {
				return
			}
		}
		t.Fatalf("not %d acquires", want)
	}
	var sent, dead sync.WaitGroup
	for range limits[calls] {
		acquire(&sent, t.Context(), "first")
	}
	for acquires.len() < limits[calls] {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 * limits[calls] {
		acquire(&dead, ctx, "dead")
	}
	pending(3 * limits[calls])
	live := make(chan error)
	go func() { live <- client.Do(t.Context(), "live", func(context.Context, *Lock) error { return nil }) }()
	pending(3*limits[calls] + 1)
	cancel()
	dead.Wait()
	acquires.sendWith(f)
	begin := time.Now()
	if err := <-live; err != nil || time.Since(begin) > 5*time.Second {
		t.Error(err, time.Since(begin))
	}
	sent.Wait()
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAGrantThatComesAfterItsAcquireWasGivenUpIsReleased(t *testing.T) {
	t.Parallel()
	var acquires withheld
	f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
		if c.GetAcquire() != nil {
			return acquires.add(resultOf(c, grants(time.Minute, "a")))
		}
		return nil
	}}
	client := f.start(t)
	failed := make(chan error)
	go func() { failed <- second(client.Acquire(t.Context(), "a")) }()
	for f.count(func(c *pb.SessionCommand) bool { return c.GetAcquire() != nil }) == 0 {
		time.Sleep(time.Millisecond)
	}
	s := client.session
	s.mu.Lock()
	for _, c := range s.pending {
		if c.isAcquire { // As after the limits of the call and of what undoes it.
			c.resolve(s.unanswered())
			s.forget(c)
		}
	}
	s.mu.Unlock()
	if err := <-failed; err == nil {
		t.Error("granted")
	}
	acquires.sendWith(f)
	_ = second(client.Get(t.Context(), "a"))          // For the next answer.
	if err := client.Close(t.Context()); err != nil { // It waits for the release.
		t.Error(err)
	}
	if got := f.count(func(c *pb.SessionCommand) bool { return c.GetRelease() != nil }); got != 1 {
		t.Errorf("%d released", got)
	}
}

func TestCloseReportsAnAcquireThatCouldNotBeUndone(t *testing.T) {
	t.Parallel()
	f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
		if c.GetAcquire() != nil {
			return unanswered
		}
		return nil
	}}
	client := f.start(t)
	acquiring, cancel := context.WithCancel(t.Context())
	go func() {
		for f.count(func(c *pb.SessionCommand) bool { return c.GetAcquire() != nil }) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := client.Acquire(acquiring, "a"); err != context.Canceled {
		t.Error(err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := client.Close(limited); err == nil {
		t.Error("a lock may be held")
	}
}

func TestNoStreamHasACommandTwice(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ids, twice := map[[2]uint64]bool{}, 0
	f := &fake{answer: func(stream int, c *pb.SessionCommand) *pb.SessionEvent {
		mu.Lock()
		defer mu.Unlock()
		if id := [2]uint64{uint64(stream), c.GetId()}; ids[id] {
			twice++
		} else {
			ids[id] = true
		}
		if c.GetAcquire() != nil && stream > maxTries {
			return resultOf(c, grants(time.Minute, "a"))
		}
		return nil
	}}
	client := f.start(t)
	if _, err := client.Acquire(t.Context(), "a"); err == nil {
		t.Error("granted")
	}
	if err := client.Close(t.Context()); err != nil { // It waits until the grant is undone.
		t.Error(err)
	}
	if got := f.count(func(c *pb.SessionCommand) bool { return c.GetRelease() != nil }); got != 1 || twice > 0 {
		t.Errorf("%d released, %d commands twice", got, twice)
	}
}

func TestTheStoreThatKeepsNoLockAfterItsReleaseKeepsTheLease(t *testing.T) {
	t.Parallel()
	f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
		switch {
		case c.GetAcquire() != nil:
			return resultOf(c, grants(10*time.Second, "a"))
		case c.GetRenew() != nil:
			return renewal(c, c.GetRenew().GetTtl().AsDuration())
		case c.GetRelease().GetKeepFor() != nil:
			failed := &pb.SessionEvent_CommandError{Code: int32(codes.FailedPrecondition), Reason: "UNSUPPORTED"}
			return resultOf(c, &pb.SessionEvent_CommandResult{Outcome: &pb.SessionEvent_CommandResult_Error{Error: failed}})
		}
		return nil
	}}
	client := f.start(t)
	if err := client.Do(t.Context(), "a", func(context.Context, *Lock) error { return nil }, AtLeast(time.Minute)); err != nil {
		t.Error(err)
	}
	for _, ttl := range []time.Duration{time.Minute, 10 * time.Second} { // Also if the process dies, and then as before.
		if f.count(func(c *pb.SessionCommand) bool { return c.GetRenew().GetTtl().AsDuration() == ttl }) != 1 {
			t.Error(ttl)
		}
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAReleaseThatCloseOvertakesEnds(t *testing.T) {
	t.Parallel()
	client := (&fake{}).start(t)
	held := newLease(client.session, &pb.Lease{LeaseId: "id", Ttl: durationpb.New(time.Minute)}, now(), trace.SpanFromContext(t.Context()))
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
	ended := make(chan error)
	go func() { ended <- releaseAll(context.Background(), []*lease{held}, errReleased) }()
	select {
	case err := <-ended:
		if err != ErrClosed {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits")
	}
}

func TestAFunctionOfTokensThatHangsOrPanicsEndsNothing(t *testing.T) {
	t.Parallel()
	for how, fail := range map[string]func(){"hangs": func() { select {} }, "panics": func() { panic("boom") }} {
		f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
			if c.GetAcquire() != nil {
				return resultOf(c, grants(time.Minute, "a"))
			}
			return nil
		}}
		f.tokens.Store(1) // It is asked for the token of now, too.
		var fails atomic.Bool
		var calls atomic.Int32
		client := f.start(t, WithBearerToken(func(context.Context) (string, error) {
			if n := calls.Add(1); n == 1 || n == 3 || fails.Load() {
				fail()
			}
			return "token", nil
		}))
		if err := client.Do(t.Context(), "a", func(context.Context, *Lock) error { return nil }, Wait(time.Minute)); err != nil {
			t.Error(how, err)
		}
		fails.Store(true)
		client.session.mu.Lock()
		client.session.stream.cancel(&Error{Code: codes.Unavailable, Message: "a test"})
		client.session.mu.Unlock()
		go func() { _, _ = client.Acquire(t.Context(), "a", WaitForever()) }()
		for last := calls.Load(); calls.Load() == last; time.Sleep(time.Millisecond) {
		}
		begin := time.Now()
		if err := client.Close(t.Context()); err != nil || time.Since(begin) > releaseLimit+time.Second {
			t.Error(how, err, time.Since(begin))
		}
	}
}

func TestALeaseThatIsNotRenewedIsReleasedWhenItsHolderHasHadItsTimeToStop(t *testing.T) {
	t.Parallel()
	var released atomic.Int64
	f := &fake{answer: func(_ int, c *pb.SessionCommand) *pb.SessionEvent {
		switch {
		case c.GetAcquire() != nil:
			return resultOf(c, grants(3*time.Second, "a"))
		case c.GetRenew() != nil:
			failed := &pb.SessionEvent_CommandError{Code: int32(codes.Unavailable), Reason: "BACKEND_UNAVAILABLE"}
			return resultOf(c, &pb.SessionEvent_CommandResult{Outcome: &pb.SessionEvent_CommandResult_Error{Error: failed}})
		case c.GetRelease() != nil:
			released.Store(int64(now()))
		}
		return nil
	}}
	client := f.start(t)
	lock, err := client.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	<-lock.Done()
	if err := client.Close(t.Context()); err != nil { // It waits for the release.
		t.Error(err)
	}
	if early := lock.lease.end.Load() - released.Load(); early > 0 {
		t.Errorf("%s early", time.Duration(early))
	}
}

func TestMetadataThatChangesLaterChangesNoRequest(t *testing.T) {
	t.Parallel()
	metadata := map[string]string{"k": "v"}
	option := Metadata(metadata)
	metadata["k"] = "w"
	r := &request{}
	if option(r); r.metadata["k"] != "v" {
		t.Error(r.metadata)
	}
}

package fencepost_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fencepost/fencepost/clients/go/fencepost"
	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
	"github.com/fencepost/fencepost/clients/go/fenceposttest"
)

var background = context.Background()

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 20 s: " + what)
		}
	}
}

func holders(t *testing.T, client *fencepost.Client, name string) int {
	t.Helper()
	state, err := client.Get(background, name)
	if err != nil {
		t.Fatal(err)
	}
	return int(state.GetHolderCount() + state.GetWaiterCount())
}

func TestDoReleasesHoweverItsFunctionEnds(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	failure := errors.New("failed")
	for how, f := range map[string]func(context.Context, *fencepost.Lock) error{
		"return": func(context.Context, *fencepost.Lock) error { return nil },
		"error":  func(context.Context, *fencepost.Lock) error { return failure },
		"panic":  func(context.Context, *fencepost.Lock) error { panic("boom") },
		"goexit": func(context.Context, *fencepost.Lock) error { runtime.Goexit(); return nil },
	} {
		var err error
		var recovered any
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { recovered = recover() }()
			err = client.Do(background, how, f)
		}()
		<-done
		if count := holders(t, client, how); count != 0 {
			t.Errorf("%s: %d hold the lock", how, count)
		}
		if (recovered != nil) != (how == "panic") || errors.Is(err, failure) != (how == "error") {
			t.Errorf("%s: recovered %v, error %v", how, recovered, err)
		}
	}
}

func TestATryFailsAtOnceAndAWaitAfterItsTime(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	defer must(client.Acquire(background, "a")).Release(background)
	_, err := client.Acquire(background, "a")
	var failed *fencepost.Error
	if !errors.Is(err, fencepost.ErrLocked) || !errors.As(err, &failed) || failed.Metadata["owner"] != t.Name() {
		t.Errorf("a try: %v", err)
	}
	began := time.Now()
	_, err = client.Acquire(background, "a", fencepost.Wait(300*time.Millisecond))
	if took := time.Since(began); !errors.Is(err, fencepost.ErrTimeout) || took < 300*time.Millisecond {
		t.Errorf("a wait: %v after %v", err, took)
	}
	large := fencepost.Metadata(map[string]string{"k": strings.Repeat("x", 70<<10)})
	if _, err = client.Acquire(background, "b", large); !errors.As(err, &failed) || failed.Reason != "INVALID_FIELD" {
		t.Errorf("a large request: %v", err)
	}
	if _, err = client.Acquire(background, ""); !errors.As(err, &failed) || failed.Reason != "INVALID_FIELD" {
		t.Errorf("no name: %v", err)
	}
}

func TestTheErrorOfTheContextIsReturnedUnchanged(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	defer must(client.Acquire(background, "a")).Release(background)
	ctx, cancel := context.WithCancel(background)
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := client.Acquire(ctx, "a", fencepost.WaitForever()); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	if _, err := client.Acquire(ctx, "a", fencepost.Wait(time.Minute)); err != context.DeadlineExceeded {
		t.Errorf("deadline: %v", err)
	}
	ctx, cancel = context.WithCancel(background)
	err := client.Do(ctx, "b", func(ctx context.Context, _ *fencepost.Lock) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if err != context.Canceled || holders(t, client, "b") != 0 {
		t.Errorf("a block: %v", err)
	}
}

func TestAcquiresThatAreCancelledAsTheyAreGrantedLeaveNothing(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	client, other := server.Client(t), server.Client(t)
	var group sync.WaitGroup
	for i := range 300 {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(background, time.Duration(i%60)*200*time.Microsecond)
			defer cancel()
			lock, err := client.Acquire(ctx, fmt.Sprint("storm-", i), fencepost.TTL(time.Minute), fencepost.Wait(time.Duration(i%2)*time.Minute))
			if err == nil {
				err = lock.Release(background)
			} else if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if err := client.Close(background); err != nil { // It waits until all is undone.
		t.Error(err)
	}
	for i := range 300 {
		if count := holders(t, other, fmt.Sprint("storm-", i)); count != 0 {
			t.Errorf("%d claims on %d", count, i)
		}
	}
}

func TestManyLeasesAtOnceAreKept(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	var group sync.WaitGroup
	locks := make([]*fencepost.Lock, 1500)
	for i := range locks {
		group.Go(func() {
			name := fmt.Sprint("many-", i)
			if i < 120 { // 64 KiB of ids are exceeded.
				name += strings.Repeat("x", 512-len(name))
			}
			locks[i] = must(client.Acquire(background, name, fencepost.TTL(12*time.Second))) // For many renewals on a busy machine.
		})
	}
	group.Wait()
	time.Sleep(15 * time.Second) // Time is the matter: more than a TTL.
	for _, lock := range locks {
		if _, err := lock.Check(); err != nil {
			t.Fatalf("%.20s: %v", lock.Name(), err)
		}
	}
	if err := client.Close(background); err != nil {
		t.Error(err)
	}
}

func TestASilentConnectionLosesNoLease(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	proxy := newProxy(t, server.Addr)
	client, err := fencepost.New(background, proxy.addr)
	if err != nil {
		t.Fatal(err)
	}
	lock := must(client.Acquire(background, "a", fencepost.TTL(6*time.Second)))
	proxy.silence()
	time.Sleep(8 * time.Second) // Time is the matter: more than a TTL.
	if err := lock.Err(); err != nil {
		t.Error(err)
	}
	if err := client.Close(background); err != nil || holders(t, server.Client(t), "a") != 0 {
		t.Errorf("close: %v", err)
	}
}

func TestADelayAndSilenceInOneDirectionLoseNoLease(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	slow, deaf := newProxy(t, server.Addr), newProxy(t, server.Addr)
	slow.slow(1500 * time.Millisecond)
	var locks []*fencepost.Lock
	for _, proxy := range []*proxy{slow, deaf} {
		client := must(fencepost.New(background, proxy.addr))
		defer client.Close(background)
		locks = append(locks, must(client.Acquire(background, proxy.addr, fencepost.TTL(6*time.Second))))
	}
	deaf.deafen()
	time.Sleep(13 * time.Second) // Time is the matter: more than two TTLs.
	for _, lock := range locks {
		if _, err := lock.Check(); err != nil {
			t.Error(lock.Name(), err)
		}
	}
}

func TestAReleaseOverASilentConnectionUsesAnotherOne(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	proxy := newProxy(t, server.Addr)
	client := must(fencepost.New(background, proxy.addr))
	lock := must(client.Acquire(background, "a", fencepost.TTL(time.Minute)))
	proxy.silence()
	if err := lock.Release(background); err != nil {
		t.Error(err)
	}
	if err := lock.Release(background); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := client.Close(background); err != nil {
		t.Error(err)
	}
}

func TestAWaitGoesOnOverARestart(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	client := server.Client(t)
	must(client.Acquire(background, "a", fencepost.TTL(time.Minute)))
	granted := make(chan *fencepost.Lock)
	go func() { granted <- must(client.Acquire(background, "a", fencepost.Wait(time.Minute))) }()
	until(t, "it waits", func() bool { return holders(t, client, "a") == 2 })
	server.Restart(t)
	if err := (<-granted).Release(background); err != nil {
		t.Error(err)
	}
}

func TestAWaitKeepsItsPlaceWhenItsConnectionBreaks(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	proxy := newProxy(t, server.Addr)
	client, other := must(fencepost.New(background, proxy.addr)), server.Client(t)
	holder := must(other.Acquire(background, "a"))
	first, second := make(chan *fencepost.Lock, 1), make(chan *fencepost.Lock, 1)
	go func() { first <- must(client.Acquire(background, "a", fencepost.Wait(time.Minute))) }()
	until(t, "the first waits", func() bool { return holders(t, other, "a") == 2 })
	go func() { second <- must(other.Acquire(background, "a", fencepost.Wait(time.Minute))) }()
	until(t, "the second waits", func() bool { return holders(t, other, "a") == 3 })
	proxy.reset()
	if err := holder.Release(background); err != nil {
		t.Error(err)
	}
	select {
	case lock := <-first:
		if err := lock.Release(background); err != nil {
			t.Error(err)
		}
	case <-second:
		t.Fatal("it was overtaken")
	}
	if err := (<-second).Release(background); err != nil {
		t.Error(err)
	}
	if err := client.Close(background); err != nil {
		t.Error(err)
	}
}

func TestALossEndsTheContextInTimeAndIsReportedOnce(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	client := must(fencepost.New(background, server.Addr))
	const ttl = 3 * time.Second
	losses := make(chan error, 9)
	began := time.Now()
	err := client.Do(background, "a", func(ctx context.Context, lock *fencepost.Lock) error {
		lock.OnLost(func(err error) { losses <- err; select {} })
		server.Signal(t, syscall.SIGSTOP)
		<-ctx.Done()
		if _, err := lock.Check(); !errors.Is(err, fencepost.ErrLeaseLost) || context.Cause(ctx) != err {
			t.Errorf("check: %v, cause: %v", err, context.Cause(ctx))
		}
		return ctx.Err()
	}, fencepost.TTL(ttl))
	if took := time.Since(began); !errors.Is(err, fencepost.ErrLeaseLost) || errors.Is(err, context.Canceled) || took > ttl+500*time.Millisecond {
		t.Errorf("%v after %v", err, took)
	}
	if err := <-losses; !errors.Is(err, fencepost.ErrLeaseLost) || len(losses) != 0 {
		t.Error(err)
	}
	server.Signal(t, syscall.SIGCONT)
	if err := client.Close(background); err != nil {
		t.Error(err)
	}
}

func TestAForcedLeaseIsLostAtOnceWhileCallbacksOfOthersBlock(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	client := server.Client(t)
	conn := must(grpc.NewClient(server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials())))
	defer conn.Close()
	force := func(lock *fencepost.Lock) {
		must(pb.NewAdminServiceClient(conn).ForceRelease(background, &pb.ForceReleaseRequest{
			Namespace: "default", Name: lock.Name(), FencingToken: lock.Token(),
		}))
	}
	first := must(client.Acquire(background, "first", fencepost.TTL(3*time.Second)))
	kept := must(client.Acquire(background, "kept", fencepost.TTL(3*time.Second)))
	time.Sleep(500 * time.Millisecond) // Until the stream names them.
	for range 3 {
		first.OnLost(func(error) { select {} })
	}
	force(first)
	select {
	case <-first.Done():
	case <-time.After(2 * time.Second):
		t.Fatal("not lost")
	}
	var failed *fencepost.Error
	if err := first.Err(); !errors.As(err, &failed) || failed.Cause != "forced" {
		t.Error(err)
	}
	time.Sleep(4 * time.Second) // Time is the matter: more than a TTL.
	if _, err := kept.Check(); err != nil {
		t.Error(err)
	}
}

func TestCloseReleasesAllAndNothingRunsAfterIt(t *testing.T) {
	server := fenceposttest.Start(t)
	other := server.Client(t)
	holders(t, other, "a") // Its connection has goroutines too.
	before := runtime.NumGoroutine()
	client := must(fencepost.New(background, server.Addr))
	var closed atomic.Int32
	locks := make([]*fencepost.Lock, 100)
	defer runtime.KeepAlive(locks)
	for i := range locks {
		locks[i] = must(client.Acquire(background, fmt.Sprint(i)))
		locks[i].OnLost(func(err error) {
			if errors.Is(err, fencepost.ErrClosed) {
				closed.Add(1)
			}
		})
	}
	waiting := make(chan error)
	go func() {
		_, err := client.Acquire(background, "1", fencepost.WaitForever())
		waiting <- err
	}()
	until(t, "it waits", func() bool { return holders(t, other, "1") == 2 })
	ended, cancel := context.WithCancel(background)
	cancel()
	if err := client.Close(ended); err != nil {
		t.Error(err)
	}
	if err := client.Close(background); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := <-waiting; err != fencepost.ErrClosed {
		t.Error(err)
	}
	for i := range 100 {
		if holders(t, other, fmt.Sprint(i)) != 0 {
			t.Errorf("%d is held", i)
		}
	}
	if _, err := client.Acquire(background, "a"); err != fencepost.ErrClosed {
		t.Error(err)
	}
	if _, err := client.Get(background, "a"); err != fencepost.ErrClosed {
		t.Error(err)
	}
	until(t, "all are told", func() bool { return closed.Load() == 100 })
	until(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

func TestTwoReadersOfOneSequenceDoNotMeet(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	observed, watched := client.Observe(background, "a"), client.Watch(background, "a")
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for _, err := range observed {
				if err != nil {
					t.Error(err)
				}
				break
			}
		})
		group.Go(func() {
			for _, err := range watched {
				if err != nil {
					t.Error(err)
				}
				break
			}
		})
	}
	group.Wait()
}

func TestTheNextAddressServesWhenOneIsDeadOrHangs(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	dead := newProxy(t, "127.0.0.1:1")
	client := must(fencepost.New(background, "127.0.0.1:1,"+dead.addr+","+server.Addr))
	lock := must(client.Acquire(background, "a"))
	if err := lock.Release(background); err != nil {
		t.Error(err)
	}
	must(client.Acquire(background, "b", fencepost.Wait(time.Second)))
	if err := client.Close(background); err != nil {
		t.Error(err)
	}
	proxy := newProxy(t, server.Addr)
	client = must(fencepost.New(background, proxy.addr+","+server.Addr))
	must(client.Acquire(background, "c"))
	proxy.silence()
	proxy.hang()
	began := time.Now()
	must(client.Acquire(background, "d", fencepost.Wait(time.Second)))
	if took := time.Since(began); took > 9*time.Second {
		t.Error(took)
	}
	if err := client.Close(background); err != nil {
		t.Error(err)
	}
}

func TestReadersShareAndASemaphoreCounts(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	must(client.Acquire(background, "a", fencepost.Shared()))
	must(client.Acquire(background, "a", fencepost.Shared()))
	if _, err := client.Acquire(background, "a", fencepost.Exclusive()); !errors.Is(err, fencepost.ErrLocked) {
		t.Error(err)
	}
	var inside, most atomic.Int32
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			err := client.Do(background, "s", func(context.Context, *fencepost.Lock) error {
				most.Store(max(most.Load(), inside.Add(1)))
				time.Sleep(10 * time.Millisecond)
				inside.Add(-1)
				return nil
			}, fencepost.Semaphore(1, 5), fencepost.Wait(time.Minute))
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if most.Load() > 5 {
		t.Error(most.Load())
	}
	first := must(client.Acquire(background, "r", fencepost.Reentrant("job")))
	again := must(client.Acquire(background, "r", fencepost.Reentrant("job")))
	if first.Token() != again.Token() || again.Lease().GetHolds() != 2 {
		t.Error(again.Lease())
	}
}

func TestSeveralLocksAreTakenWithoutDeadlock(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			names := []string{fmt.Sprint(i % 3), fmt.Sprint((i + 1) % 3)}
			err := client.DoAll(background, names, func(_ context.Context, locks []*fencepost.Lock) error {
				if locks[0].Name() != names[0] || locks[1].Name() != names[1] {
					t.Error(names)
				}
				return nil
			}, fencepost.Wait(time.Minute))
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	must(client.Acquire(background, "1"))
	_, err := client.AcquireAll(background, []string{"0", "1"})
	var failed *fencepost.Error
	if !errors.As(err, &failed) || failed.Metadata["name"] != "1" || holders(t, client, "0") != 0 {
		t.Error(err)
	}
	if locks, err := client.AcquireAll(background, []string{"1"}); locks != nil || !errors.Is(err, fencepost.ErrLocked) {
		t.Error(locks, err)
	}
}

func TestObserversSeeEachLeaderInOrderOverARestart(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	client := server.Client(t)
	ctx, cancel := context.WithCancel(background)
	seen, ended := make(chan *pb.Leader, 99), make(chan error, 1)
	go func() {
		for leader, err := range client.Observe(ctx, "e") {
			if err != nil {
				ended <- err
				return
			}
			seen <- leader
		}
	}()
	next := func(value string) *pb.Leader {
		t.Helper()
		for {
			select {
			case leader := <-seen:
				if leader.GetValue() == value {
					return leader
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%q was not seen", value)
			}
		}
	}
	next("")
	anna := must(client.Campaign(background, "e", fencepost.Value("anna")))
	first := next("anna")
	if err := anna.Proclaim(background, "anna 2"); err != nil {
		t.Error(err)
	}
	next("anna 2")
	if leader := must(client.Leader(background, "e")); leader.GetFencingToken() != anna.Token() {
		t.Error(leader)
	}
	if err := anna.Release(background); err != nil {
		t.Error(err)
	}
	next("")
	server.Restart(t)
	elected, deposed := make(chan struct{}), make(chan error, 1)
	lead, stop := context.WithCancel(background)
	returned := make(chan error)
	go func() {
		returned <- client.Lead(lead, "e", fencepost.Callbacks{
			OnElected: func(ctx context.Context, _ *fencepost.Leadership) error {
				close(elected)
				<-ctx.Done()
				return ctx.Err()
			},
			OnDeposed: func(err error) { deposed <- err },
		}, fencepost.Value("bert"))
	}()
	<-elected
	if bert := next("bert"); bert.GetFencingToken() <= first.GetFencingToken() {
		t.Error(bert, first)
	}
	stop()
	if err := <-returned; err != context.Canceled || <-deposed != err {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Error(err)
	}
}

func TestLeadCampaignsAgainAfterALoss(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	client := server.Client(t)
	times := 0
	err := client.Lead(background, "e", fencepost.Callbacks{
		OnElected: func(ctx context.Context, leadership *fencepost.Leadership) error {
			if times++; times == 2 {
				return nil
			}
			server.Restart(t)
			<-ctx.Done()
			return nil
		},
		OnDeposed: func(err error) {
			if (times == 1) != errors.Is(err, fencepost.ErrLeaseLost) {
				t.Error(times, err)
			}
		},
	}, fencepost.TTL(3*time.Second))
	if err != nil || times != 2 {
		t.Error(times, err)
	}
}

func TestWatchAndCheckAndMetadata(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	var kinds []pb.ChangeKind
	var lock *fencepost.Lock
	for event, err := range client.Watch(background, "a") {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case event.GetState() != nil:
			lock = must(client.Acquire(background, "a", fencepost.Metadata(map[string]string{"k": "v"})))
			if held := must(client.CheckToken(background, "a", lock.Token())); !held {
				t.Error("not held")
			}
			if state := must(client.Get(background, "a")); state.GetHolders()[0].GetMetadata()["k"] != "v" {
				t.Error(state)
			}
			if err := lock.SetMetadata(background, map[string]string{"k": "w"}); err != nil {
				t.Error(err)
			}
			if err := lock.Release(background); err != nil {
				t.Error(err)
			}
		case event.GetChange() != nil:
			kinds = append(kinds, event.GetChange().GetKind())
		}
		if len(kinds) == 3 {
			break
		}
	}
	if fmt.Sprint(kinds) != "[CHANGE_KIND_GRANTED CHANGE_KIND_UPDATED CHANGE_KIND_RELEASED]" {
		t.Error(kinds)
	}
	if held := must(client.CheckToken(background, "a", lock.Token())); held {
		t.Error("held")
	}
}

func TestTheHolderAndTheTimeLeftAreTold(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	lock := must(client.Acquire(background, "a", fencepost.TTL(10*time.Second)))
	if left := lock.Remaining(); left > 10*time.Second || left < 5*time.Second {
		t.Error(left)
	}
	if err := lock.Extend(background, time.Minute); err != nil || lock.Remaining() < 50*time.Second {
		t.Error(err, lock.Remaining())
	}
	_, err := client.Acquire(background, "a")
	var failed *fencepost.Error
	if !errors.As(err, &failed) {
		t.Fatal(err)
	}
	if owner, left := failed.Holder(); owner != t.Name() || left < 50*time.Second {
		t.Error(owner, left)
	}
	if err := lock.Release(background); err != nil || lock.Remaining() != 0 {
		t.Error(err)
	}
	if err := lock.Extend(background, time.Minute); !errors.Is(err, fencepost.ErrLeaseLost) {
		t.Error(err)
	}
}

func TestALockStaysTakenForItsTimeAfterItsRelease(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	client := server.Client(t)
	for _, ttl := range []time.Duration{time.Second, time.Minute} { // The lease of a process that dies lives so long, too.
		name := ttl.String()
		began := time.Now()
		err := client.Do(background, name, func(_ context.Context, lock *fencepost.Lock) error {
			if lock.Remaining() < 2*time.Second {
				t.Error(lock.Remaining())
			}
			return nil
		}, fencepost.AtLeast(3*time.Second), fencepost.TTL(ttl))
		if err != nil {
			t.Error(err)
		}
		if _, err := client.Acquire(background, name); !errors.Is(err, fencepost.ErrLocked) {
			t.Error(err)
		}
		must(client.Acquire(background, name, fencepost.Wait(20*time.Second)))
		if took := time.Since(began); took < 3*time.Second || took > 15*time.Second {
			t.Error(took)
		}
	}
	ran := false
	err := client.Do(background, "a", func(context.Context, *fencepost.Lock) error { ran = true; return nil }, fencepost.AtLeast(1e4*time.Hour))
	var failed *fencepost.Error
	if !errors.As(err, &failed) || failed.Reason != "INVALID_FIELD" || ran || holders(t, client, "a") != 0 {
		t.Error(err, ran)
	}
}

func TestANamedLockIsALocker(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	var locker sync.Locker = client.Lock("a")
	var inside, count int
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			locker.Lock()
			defer locker.Unlock()
			if inside++; inside != 1 {
				t.Error(inside)
			}
			count++
			inside--
		})
	}
	group.Wait()
	if count != 20 || holders(t, client, "a") != 0 {
		t.Error(count)
	}
	again := client.Lock("b", fencepost.Wait(time.Second))
	for range 2 {
		err := again.Do(background, func(_ context.Context, lock *fencepost.Lock) error {
			_, err := lock.Check()
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("an unlock without a lock")
			}
		}()
		locker.Unlock()
	}()
}

func TestLocksAreListedAndForced(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	locks := must(client.AcquireAll(background, []string{"jobs/a", "jobs/b", "other"}))
	var names []string
	for lock, err := range client.List(background, "jobs/") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, lock.GetName())
	}
	if fmt.Sprint(names) != "[jobs/a jobs/b]" {
		t.Error(names)
	}
	if err := client.ForceRelease(background, "jobs/a", locks[0].Token()); err != nil {
		t.Error(err)
	}
	<-locks[0].Done()
	if err := client.ForceRelease(background, "jobs/a", locks[0].Token()); !errors.Is(err, fencepost.ErrLeaseLost) {
		t.Error(err)
	}
	for _, lock := range locks[1:] {
		if err := lock.Release(background); err != nil {
			t.Error(err)
		}
	}
}

// thrower panics where a handler of logs would write.
type thrower struct{ slog.Handler }

func (thrower) Handle(context.Context, slog.Record) error { panic("boom") }

func TestNilOptionsAndPanicsOfTheUsersCodeEndNothing(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	log := slog.New(thrower{slog.NewTextHandler(io.Discard, nil)})
	client := must(fencepost.New(background, server.Addr, nil, fencepost.WithLogger(log), fencepost.WithTLS(nil), fencepost.WithDialOptions(nil)))
	lock := must(client.Acquire(background, "a", nil, fencepost.Metadata(nil)))
	called := make(chan struct{})
	lock.OnLost(func(error) { close(called); panic("boom") })
	if err := client.ForceRelease(background, "a", lock.Token()); err != nil {
		t.Error(err)
	}
	<-called
	if err := client.Do(background, "a", func(context.Context, *fencepost.Lock) error { return nil }, nil); err != nil {
		t.Error(err)
	}
	if err := client.Close(background); err != nil {
		t.Error(err)
	}
	if _, err := fencepost.New(background, server.Addr, fencepost.WithLogger(nil)); err != nil {
		t.Error(err)
	}
}

package resourcelock_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	k8s "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/fencepost/fencepost/clients/go/fencepost"
	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
	"github.com/fencepost/fencepost/clients/go/fenceposttest"
	"github.com/fencepost/fencepost/clients/go/resourcelock"
)

func elect(t *testing.T, ctx context.Context, lock k8s.Interface, events chan<- string) {
	t.Helper()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 200 * time.Millisecond,
		ReleaseOnCancel: true, Name: t.Name(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { events <- lock.Identity() + " leads" },
			OnStoppedLeading: func() { events <- lock.Identity() + " stopped" },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	go elector.Run(ctx)
}

func expect(t *testing.T, events <-chan string, want string) {
	t.Helper()
	select {
	case event := <-events:
		if event != want {
			t.Fatalf("%q instead of %q", event, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no event %q", want)
	}
}

func TestTheNextCandidateLeadsWhenTheLeaderStopsOrLosesItsLease(t *testing.T) {
	t.Parallel()
	server := fenceposttest.Start(t)
	events := make(chan string, 9)
	anna, stop := context.WithCancel(t.Context())
	elect(t, anna, resourcelock.New(server.Client(t), "controller", "anna"), events)
	expect(t, events, "anna leads")
	elect(t, t.Context(), resourcelock.New(server.Client(t), "controller", "bert"), events)
	stop()
	first, second := <-events, <-events
	if first > second {
		first, second = second, first
	}
	if first != "anna stopped" || second != "bert leads" {
		t.Fatal(first, second)
	}
	server.Restart(t) // The leadership is lost, and must not be taken again unnoticed.
	expect(t, events, "bert stopped")
}

func TestALeaderThatDoesNotUpdateItsRecordIsReplaced(t *testing.T) {
	t.Parallel()
	client := fenceposttest.Start(t).Client(t)
	lock := resourcelock.New(client, "controller", "anna")
	if _, _, err := lock.Get(t.Context()); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	record := k8s.LeaderElectionRecord{HolderIdentity: "anna", LeaseDurationSeconds: 3}
	if err := lock.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	other := resourcelock.New(client, "controller", "bert")
	if err := other.Create(t.Context(), k8s.LeaderElectionRecord{HolderIdentity: "bert", LeaseDurationSeconds: 3}); err == nil {
		t.Fatal("two lead")
	}
	if found, _, err := other.Get(t.Context()); err != nil || found.HolderIdentity != "anna" {
		t.Fatal(found, err)
	}
	for range 5 { // Longer than a LeaseDuration.
		time.Sleep(time.Second)
		if err := lock.Update(t.Context(), record); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for other.Create(t.Context(), k8s.LeaderElectionRecord{HolderIdentity: "bert", LeaseDurationSeconds: 3}) != nil {
		if time.Since(began) > 10*time.Second {
			t.Fatal("anna still leads")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if took := time.Since(began); took < 2500*time.Millisecond {
		t.Fatal("taken over after", took)
	}
}

// lateProclaim passes the result of a proclaim on after a release was sent: after the LeaseDuration.
type lateProclaim struct {
	grpc.ClientStream
	released atomic.Bool
	late     *pb.SessionEvent
}

func (l *lateProclaim) SendMsg(m any) error {
	for _, c := range m.(*pb.SessionRequest).GetCommands() {
		if c.GetRelease() != nil {
			l.released.Store(true)
		}
	}
	return l.ClientStream.SendMsg(m)
}

func (l *lateProclaim) RecvMsg(m any) error {
	err := l.ClientStream.RecvMsg(m)
	message := m.(*pb.SessionResponse)
	message.Events = slices.DeleteFunc(message.Events, func(e *pb.SessionEvent) bool {
		if e.GetResult().GetProclaim() == nil {
			return false
		}
		l.late = e
		return true
	})
	if l.late != nil && l.released.Load() {
		message.Events, l.late = append([]*pb.SessionEvent{l.late}, message.Events...), nil
	}
	return err
}

func TestAnUpdateFailsIfTheLeadershipEndsMeanwhile(t *testing.T) {
	t.Parallel()
	delayed := func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := open(ctx, desc, conn, method, options...)
		return &lateProclaim{ClientStream: stream}, err
	}
	client := fenceposttest.Start(t).Client(t, fencepost.WithDialOptions(grpc.WithStreamInterceptor(delayed)))
	lock := resourcelock.New(client, "controller", "anna")
	record := k8s.LeaderElectionRecord{HolderIdentity: "anna", LeaseDurationSeconds: 2}
	if err := lock.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	for range 2 { // It is not taken again at once either.
		if err := lock.Update(t.Context(), record); !errors.Is(err, fencepost.ErrLeaseLost) {
			t.Fatal(err)
		}
	}
}

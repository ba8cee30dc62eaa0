// The driver of the scenarios in clients/scenarios: commands as JSON lines on stdin, events as JSON lines on stdout.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fencepost/fencepost/clients/go/fencepost"
	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
)

type command struct {
	Op, ID, Name, How, Value string
	Names                    []string
	TTL, MS                  int64
	Wait                     *int64
	Mode                     json.RawMessage
	Metadata                 map[string]string
	Reentrant, Bare          bool
	Count, Locks             int
	AtLeast                  int64 `json:"at_least"`
}

type event = map[string]any

// can is what this client is and does beyond what all are and do.
var can = []string{"block", "slow_callback", "final_tls", "token_rotation", "early_loss", "due_renewals", "resume", "no_proxy", "once"}

var (
	errBoom = errors.New("boom")
	client  *fencepost.Client
	out     = make(chan event)
	mu      sync.Mutex
	blocks  = map[string]*block{}
	many    []*fencepost.Lock // Of hold.
)

// block is an acquire or an observation that goes on.
type block struct {
	end    chan string // How the block ends.
	cancel context.CancelFunc
	lock   atomic.Pointer[fencepost.Lock]
}

func main() {
	go func() {
		for e := range out {
			line, _ := json.Marshal(e)
			_, _ = os.Stdout.Write(append(line, '\n'))
		}
	}()
	out <- event{"event": "hello", "language": "go", "can": can, "boom": []string{"throw", "panic", "goexit"}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		if client == nil {
			var err error
			if client, err = fencepost.NewFromEnv(context.Background()); err != nil {
				panic(err)
			}
		}
		if c.Op == "exit" {
			return
		}
		run(c)
	}
}

func reply(id, name string, fields event) {
	e := event{"event": name, "id": id}
	for k, v := range fields {
		e[k] = v
	}
	out <- e
}

func run(c command) {
	mu.Lock()
	b := blocks[c.ID]
	mu.Unlock()
	switch c.Op {
	case "acquire", "campaign", "observe":
		ctx, cancel := context.WithCancel(context.Background())
		b = &block{end: make(chan string, 1), cancel: cancel}
		mu.Lock()
		blocks[c.ID] = b
		mu.Unlock()
		if c.Op == "observe" {
			go observe(ctx, c)
		} else {
			go hold(ctx, c, b)
		}
	case "release", "boom", "cancel":
		switch {
		case b == nil: // It has ended.
		case c.Op == "cancel":
			b.cancel()
		default:
			b.end <- c.How
		}
	case "check":
		lock := held(b)
		if lock == nil {
			reply(c.ID, "notheld", nil)
		} else if token, err := lock.Check(); err != nil {
			reply(c.ID, "notheld", nil)
		} else {
			reply(c.ID, "ok", event{"token": token})
		}
	case "block", "slow_callback": // Go has no event loop to block, but callbacks of locks.
		if lock := held(b); lock != nil {
			lock.OnLost(func(error) { time.Sleep(time.Duration(c.MS) * time.Millisecond) })
		}
		reply(c.ID, "ok", nil)
	case "hold":
		go holdMany(c)
	case "drop_all":
		go func() {
			mu.Lock()
			locks := many
			many = nil
			mu.Unlock()
			var group sync.WaitGroup
			for _, lock := range locks {
				group.Go(func() { _ = lock.Release(context.Background()) })
			}
			group.Wait()
			reply(c.ID, "ok", event{"count": len(locks)})
		}()
	case "churn":
		go churn(c)
	case "once":
		go func() {
			nothing := func(context.Context, *fencepost.Lock) error { return nil }
			if err := client.Do(context.Background(), c.Name, nothing, fencepost.AtLeast(time.Duration(c.AtLeast)*time.Millisecond)); err != nil {
				reply(c.ID, "failed", failure(err))
				return
			}
			reply(c.ID, "ok", nil)
		}()
	case "bench":
		go bench(c)
	case "close":
		go func() { _ = client.Close(context.Background()); reply(c.ID, "closed", nil) }()
	default:
		reply(c.ID, "unsupported", nil)
	}
}

func held(b *block) *fencepost.Lock {
	if b == nil {
		return nil
	}
	return b.lock.Load()
}

func options(c command) []fencepost.LockOption {
	options := []fencepost.LockOption{fencepost.Metadata(c.Metadata), fencepost.Value(c.Value)}
	if c.TTL > 0 {
		options = append(options, fencepost.TTL(time.Duration(c.TTL)*time.Millisecond))
	}
	if c.Wait != nil && *c.Wait < 0 {
		options = append(options, fencepost.WaitForever())
	} else if c.Wait != nil {
		options = append(options, fencepost.Wait(time.Duration(*c.Wait)*time.Millisecond))
	}
	var semaphore struct{ Permits, Limit uint32 }
	if string(c.Mode) == `"shared"` {
		options = append(options, fencepost.Shared())
	} else if json.Unmarshal(c.Mode, &semaphore) == nil && semaphore.Limit > 0 {
		options = append(options, fencepost.Semaphore(semaphore.Permits, semaphore.Limit))
	}
	if c.Reentrant {
		options = append(options, fencepost.Reentrant(os.Getenv("FENCEPOST_OWNER")))
	}
	return options
}

func hold(ctx context.Context, c command, b *block) {
	inside := func(ctx context.Context, locks []*fencepost.Lock) error {
		tokens := make([]uint64, len(locks))
		for i, lock := range locks {
			tokens[i] = lock.Token()
		}
		b.lock.Store(locks[0])
		reply(c.ID, "granted", event{"token": tokens[0], "tokens": tokens})
		select {
		case <-ctx.Done():
			var lost *fencepost.Error
			if cause := context.Cause(ctx); errors.As(cause, &lost) {
				reply(c.ID, "lost", event{"cause": lost.Cause})
			} else if errors.Is(cause, fencepost.ErrClosed) {
				reply(c.ID, "lost", event{"cause": "closed"})
			}
			return ctx.Err()
		case how := <-b.end:
			switch how {
			case "throw":
				return errBoom
			case "panic":
				panic(errBoom)
			case "goexit":
				runtime.Goexit()
			}
			return nil
		}
	}
	err := errBoom // That of a block which ends by a panic or Goexit.
	defer func() {
		_ = recover()
		mu.Lock()
		delete(blocks, c.ID)
		mu.Unlock()
		if err == nil {
			reply(c.ID, "released", nil)
		} else {
			reply(c.ID, "failed", failure(err))
		}
	}()
	switch {
	case c.Op == "campaign":
		var leadership *fencepost.Leadership
		if leadership, err = client.Campaign(ctx, c.Name, options(c)...); err != nil {
			return
		}
		block, cancel := leadership.Context(ctx)
		defer cancel()
		err = inside(block, []*fencepost.Lock{leadership.Lock})
		if released := leadership.Release(context.WithoutCancel(ctx)); released != nil {
			err = released
		}
	case len(c.Names) > 0:
		err = client.DoAll(ctx, c.Names, inside, options(c)...)
	default:
		err = client.Do(ctx, c.Name, func(ctx context.Context, lock *fencepost.Lock) error {
			return inside(ctx, []*fencepost.Lock{lock})
		}, options(c)...)
	}
}

func failure(err error) event {
	var failed *fencepost.Error
	e := event{"kind": "other", "reason": "", "message": err.Error()}
	if errors.As(err, &failed) {
		e["reason"] = failed.Reason
	}
	switch {
	case errors.Is(err, errBoom):
		e["kind"] = "boom"
	case errors.Is(err, fencepost.ErrLeaseLost):
		e["kind"] = "lost"
	case errors.Is(err, fencepost.ErrClosed):
		e["kind"] = "closed"
	case errors.Is(err, fencepost.ErrLocked):
		e["kind"] = "held"
	case errors.Is(err, fencepost.ErrTimeout):
		e["kind"] = "timeout"
	case failed != nil:
		kinds := map[codes.Code]string{
			codes.PermissionDenied: "denied", codes.Unauthenticated: "unauthenticated", codes.ResourceExhausted: "overloaded",
			codes.InvalidArgument: "invalid", codes.Aborted: "superseded", codes.Unavailable: "unavailable",
			codes.DeadlineExceeded: "unavailable", codes.Unknown: "unavailable", codes.Internal: "unavailable",
		}
		if kind := kinds[failed.Code]; kind != "" {
			e["kind"] = kind
		}
	case errors.Is(err, context.Canceled):
		e["kind"] = "cancelled"
	}
	return e
}

func observe(ctx context.Context, c command) {
	for leader, err := range client.Observe(ctx, c.Name) {
		switch {
		case err != nil:
			reply(c.ID, "failed", failure(err))
		case leader == nil:
			reply(c.ID, "leader", event{"token": nil, "value": ""})
		default:
			reply(c.ID, "leader", event{"token": leader.GetFencingToken(), "value": leader.GetValue()})
		}
	}
}

func holdMany(c command) {
	var group sync.WaitGroup
	var count, failed atomic.Int32
	for _, name := range c.Names {
		group.Go(func() {
			lock, err := client.Acquire(context.Background(), name, options(c)...)
			if err != nil {
				failed.Add(1)
				return
			}
			count.Add(1)
			mu.Lock()
			many = append(many, lock)
			mu.Unlock()
		})
	}
	group.Wait()
	reply(c.ID, "held", event{"count": count.Load(), "failed": failed.Load()})
}

func churn(c command) {
	for range c.Count {
		one, err := fencepost.NewFromEnv(context.Background())
		if err == nil {
			err = one.Do(context.Background(), "churn", func(context.Context, *fencepost.Lock) error { return nil }, fencepost.Wait(time.Minute))
			err = errors.Join(err, one.Close(context.Background()))
		}
		if err != nil {
			reply(c.ID, "failed", failure(err))
			return
		}
	}
	reply(c.ID, "ok", nil)
}

func bench(c command) {
	conn, err := grpc.NewClient(os.Getenv("FENCEPOST_ADDR"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		reply(c.ID, "failed", failure(err))
		return
	}
	defer func() { _ = conn.Close() }()
	stub := pb.NewLockServiceClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.MS)*time.Millisecond)
	defer cancel()
	var group sync.WaitGroup
	var pairs atomic.Int64
	for i := range c.Locks {
		group.Go(func() {
			name := "bench-" + string(rune('0'+i/100)) + string(rune('0'+i/10%10)) + string(rune('0'+i%10))
			for ctx.Err() == nil {
				var err error
				if c.Bare {
					var got *pb.AcquireResponse
					if got, err = stub.Acquire(context.Background(), &pb.AcquireRequest{Namespace: "default", Name: name, Owner: "bench"}); err == nil {
						_, err = stub.Release(context.Background(), &pb.ReleaseRequest{LeaseId: got.Lease.LeaseId})
					}
				} else {
					err = client.Do(context.Background(), name, func(context.Context, *fencepost.Lock) error { return nil })
				}
				if err == nil {
					pairs.Add(1)
				}
			}
		})
	}
	group.Wait()
	reply(c.ID, "bench", event{"pairs": pairs.Load(), "ms": c.MS})
}

package fencepost_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/clients/go/fencepost"
	"github.com/fencepost/fencepost/clients/go/fenceposttest"
)

// Each loss is told once, also that by a close.
func TestClosesDuringAStormOfResetsLeaveNothing(t *testing.T) { // Alone, because goroutines are counted.
	server := fenceposttest.Start(t)
	other := server.Client(t)
	proxy := newProxy(t, server.Addr)
	holders(t, other, "a")
	before := runtime.NumGoroutine()
	quiet := fencepost.WithLogger(slog.New(slog.DiscardHandler))
	stop := time.Now().Add(5 * time.Second)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Duration(rand.IntN(200)) * time.Millisecond):
				proxy.reset()
			}
		}
	}()
	var group sync.WaitGroup
	var unsure atomic.Bool
	for i := range 6 {
		group.Go(func() {
			for time.Now().Before(stop) {
				client := must(fencepost.New(background, proxy.addr, quiet))
				var inner sync.WaitGroup
				var mu sync.Mutex
				told := map[*fencepost.Lock]int{}
				granted := 0
				for j := range 10 {
					inner.Go(func() {
						for n := 0; ; n++ {
							ctx, cancel := context.WithTimeout(background, time.Duration(rand.IntN(300))*time.Millisecond)
							lock, err := client.Acquire(ctx, fmt.Sprint("s-", (i+j)%12), fencepost.TTL(time.Minute), fencepost.Wait(time.Duration(n%2)*time.Minute))
							if err == nil {
								mu.Lock()
								granted++
								mu.Unlock()
								lock.OnLost(func(error) { mu.Lock(); told[lock]++; mu.Unlock() })
								if n%3 != 0 {
									_ = lock.Release(ctx)
								} else {
									<-lock.Done()
								}
							}
							cancel()
							if errors.Is(err, fencepost.ErrClosed) {
								return
							}
						}
					})
				}
				time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
				began := time.Now()
				err := client.Close(background)
				if took := time.Since(began); took > 10*time.Second {
					t.Error("close", took, err)
				}
				if err != nil {
					t.Log(err)
					unsure.Store(true)
				}
				inner.Wait()
				mu.Lock()
				for _, n := range told {
					if n != 1 {
						t.Error(n)
					}
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	close(done)
	for i := range 12 {
		if unsure.Load() {
			break
		}
		for end := time.Now().Add(8 * time.Second); holders(t, other, fmt.Sprint("s-", i)) > 0; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(must(other.Get(background, fmt.Sprint("s-", i))))
			}
		}
	}
	proxy.reset()
	until(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

func TestAStormOfResetsLosesNoLeaseAndLeavesNothing(t *testing.T) { // Alone, because goroutines are counted.
	server := fenceposttest.Start(t)
	other := server.Client(t)
	proxy := newProxy(t, server.Addr)
	holders(t, other, "a") // Its connection has goroutines too.
	before := runtime.NumGoroutine()
	quiet := fencepost.WithLogger(slog.New(slog.DiscardHandler))
	client := must(fencepost.New(background, proxy.addr, quiet))
	kept := must(client.Acquire(background, "kept", fencepost.TTL(10*time.Second)))
	storm, stop := context.WithTimeout(background, 4*time.Second)
	defer stop()
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() {
			name := fmt.Sprint("storm-", i%20)
			for n := 0; storm.Err() == nil; n++ {
				ctx, cancel := context.WithTimeout(background, time.Duration(n%7)*20*time.Millisecond)
				if lock, err := client.Acquire(ctx, name, fencepost.TTL(time.Minute), fencepost.Wait(time.Duration(n%2)*time.Minute)); err == nil {
					_ = lock.Release(ctx)
				}
				cancel()
			}
		})
	}
	group.Go(func() {
		for _, err := range client.Observe(storm, "kept") {
			if err != nil && err != context.DeadlineExceeded {
				t.Error(err)
			}
		}
	})
	for storm.Err() == nil {
		time.Sleep(150 * time.Millisecond)
		proxy.reset()
	}
	group.Wait()
	if err := kept.Err(); err != nil {
		t.Error(err)
	}
	if err := client.Close(background); err != nil { // It waits until all is undone.
		t.Error(err)
	}
	for i := range 20 { // What a broken connection still brings is taken out by the server.
		until(t, "all is undone", func() bool { return holders(t, other, fmt.Sprint("storm-", i)) == 0 })
	}
	proxy.reset()
	until(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

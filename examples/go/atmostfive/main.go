// Jobs of which at most five run at a time, on all machines together: atmostfive [JOBS].
package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/programs"
	"github.com/fencepost/fencepost/clients/go/fencepost"
)

func main() {
	log.SetFlags(0)
	if err := run(context.Background(), programs.Arg(1, "12")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, jobsText string) error {
	jobs, err := strconv.Atoi(jobsText)
	if err != nil {
		return err
	}
	client, err := programs.Connect(ctx, "five")
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	var running, most atomic.Int32
	group, ctx := errgroup.WithContext(ctx)
	for job := range jobs {
		group.Go(func() error {
			return client.Do(ctx, "transcode", func(context.Context, *fencepost.Lock) error {
				atOnce := running.Add(1)
				defer running.Add(-1)
				for seen := most.Load(); atOnce > seen && !most.CompareAndSwap(seen, atOnce); seen = most.Load() {
				}
				time.Sleep(500 * time.Millisecond) // The work of this job.
				fmt.Printf("job %d has run\n", job)
				return nil
			}, fencepost.Semaphore(1, 5), fencepost.Wait(time.Minute), fencepost.TTL(8*time.Second))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	fmt.Printf("at most %d at a time\n", most.Load())
	return nil
}

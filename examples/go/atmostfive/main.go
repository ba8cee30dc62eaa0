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
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/fencepost"
	pb "example.com/fencepost/fencepost/v1"
)

func main() {
	log.SetFlags(0)
	if err := run(fencepost.Arg(1, "12")); err != nil {
		log.Fatal(err)
	}
}

func run(jobsText string) error {
	jobs, err := strconv.Atoi(jobsText)
	if err != nil {
		return err
	}
	client, err := fencepost.Connect(context.Background(), "five")
	if err != nil {
		return err
	}
	var running, most atomic.Int32
	group, ctx := errgroup.WithContext(context.Background())
	for job := range jobs {
		group.Go(func() error {
			five := &pb.Mode{Kind: &pb.Mode_Semaphore_{Semaphore: &pb.Mode_Semaphore{Permits: 1, Limit: 5}}}
			req := &pb.AcquireRequest{Name: "transcode", Wait: durationpb.New(time.Minute), Ttl: durationpb.New(8 * time.Second), Mode: five}
			return client.With(ctx, req, func(context.Context, uint64) error {
				atOnce := running.Add(1)
				defer running.Add(-1)
				for seen := most.Load(); atOnce > seen && !most.CompareAndSwap(seen, atOnce); seen = most.Load() {
				}
				time.Sleep(500 * time.Millisecond) // The work of this job.
				fmt.Printf("job %d has run\n", job)
				return nil
			})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	fmt.Printf("at most %d at a time\n", most.Load())
	return nil
}

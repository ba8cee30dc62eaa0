// A candidate for leadership, until it is ended: leader NAME [TTL]. The program observer shows who leads.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/fencepost"
	pb "example.com/fencepost/fencepost/v1"
	"example.com/fencepost/locks"
)

func main() {
	log.SetFlags(0)
	name := fencepost.Arg(1, "candidate")
	ttl, err := time.ParseDuration(fencepost.Arg(2, "5s"))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	client, err := fencepost.Connect(ctx, name)
	if err != nil {
		log.Fatal(err)
	}
	for {
		err := client.With(ctx, &pb.AcquireRequest{
			Name:     "leader",
			Wait:     durationpb.New(time.Hour),
			Ttl:      durationpb.New(ttl),
			Metadata: map[string]string{"address": name + ".example:8080"},
		}, func(ctx context.Context, token uint64) error {
			fmt.Println(name, "leads with token", token)
			<-ctx.Done() // The work of a leader ends with ctx.
			return nil
		})
		if errors.Is(err, locks.ErrLeaseLost) {
			fmt.Println(name, "leads no more:", err)
		} else if failed := new(locks.Error); !errors.As(err, &failed) || !failed.Retryable && !errors.Is(err, locks.ErrWaitTimeout) {
			log.Fatal(err)
		}
	}
}

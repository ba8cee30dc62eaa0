// Shows who leads, until it is ended: the present leader, then each change.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"example.com/fencepost"
	pb "example.com/fencepost/fencepost/v1"
	"example.com/fencepost/locks"
)

func main() {
	log.SetFlags(0)
	client, err := fencepost.Connect(context.Background(), "observer")
	if err != nil {
		log.Fatal(err)
	}
	// After an error, the next watch begins with the present state.
	for newest := uint64(0); ; time.Sleep(500 * time.Millisecond) {
		newest = observe(context.Background(), client, newest)
	}
}

func observe(ctx context.Context, client *locks.Client, newest uint64) uint64 {
	stream, err := client.WatchLock(ctx, &pb.WatchLockRequest{Namespace: "default", Name: "leader"})
	if err != nil {
		return newest
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return newest
		}
		state := event.GetState()
		if change := event.GetChange(); change != nil && change.Kind != pb.ChangeKind_CHANGE_KIND_QUEUED {
			// A change does not show the holder's metadata.
			found, err := client.GetLock(ctx, &pb.GetLockRequest{Namespace: "default", Name: "leader"})
			if err != nil {
				return newest
			}
			state = found.Lock
		}
		if state != nil && len(state.Holders) == 0 {
			fmt.Println("nobody leads")
		}
		for _, holder := range state.GetHolders() {
			if holder.FencingToken > newest {
				newest = holder.FencingToken
				fmt.Printf("%s leads at %s, token %d\n", holder.Owner, holder.Metadata["address"], newest)
			}
		}
	}
}

// A candidate for leadership, until it is ended: leader NAME [TTL]. The program observer shows who leads.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"example.com/programs"
	"github.com/fencepost/fencepost/clients/go/fencepost"
)

func main() {
	log.SetFlags(0)
	name := programs.Arg(1, "candidate")
	ttl, err := time.ParseDuration(programs.Arg(2, "5s"))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	client, err := programs.Connect(ctx, name)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(client.Lead(ctx, "leader", fencepost.Callbacks{
		OnElected: func(ctx context.Context, leadership *fencepost.Leadership) error {
			fmt.Println(name, "leads with token", leadership.Token())
			<-ctx.Done() // The work of a leader ends with ctx.
			return ctx.Err()
		},
		OnDeposed: func(err error) { fmt.Println(name, "leads no more:", err) },
	}, fencepost.Value(name+".example:8080"), fencepost.TTL(ttl)))
}

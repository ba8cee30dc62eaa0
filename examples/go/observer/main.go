// Shows who leads, until it is ended: the present leader, then each change.
package main

import (
	"context"
	"fmt"
	"log"

	"example.com/programs"
)

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	client, err := programs.Connect(ctx, "observer")
	if err != nil {
		log.Fatal(err)
	}
	for leader, err := range client.Observe(ctx, "leader") {
		switch {
		case err != nil:
			log.Fatal(err)
		case leader == nil:
			fmt.Println("nobody leads")
		default:
			fmt.Printf("%s leads at %s, token %d\n", leader.Candidate, leader.Value, leader.FencingToken)
		}
	}
}

// Package fencepost has what the programs share.
package fencepost

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"example.com/fencepost/locks"
)

// Connect returns a client of the server at FENCEPOST_ADDR.
func Connect(ctx context.Context, program string) (*locks.Client, error) {
	conn, err := grpc.NewClient(cmp.Or(os.Getenv("FENCEPOST_ADDR"), "127.0.0.1:50051"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, err
	}
	return locks.New(ctx, conn, fmt.Sprintf("%s-%d", program, os.Getpid())), nil
}

// Arg returns an argument of the program, or its default.
func Arg(n int, otherwise string) string {
	if n < len(os.Args) {
		return os.Args[n]
	}
	return otherwise
}

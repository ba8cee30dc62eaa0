// Package programs has what the programs share.
package programs

import (
	"context"
	"fmt"
	"os"

	"github.com/fencepost/fencepost/clients/go/fencepost"
)

// Connect returns a client of the server at FENCEPOST_ADDR.
func Connect(ctx context.Context, program string) (*fencepost.Client, error) {
	return fencepost.NewFromEnv(ctx, fencepost.WithOwner(fmt.Sprintf("%s-%d", program, os.Getpid())))
}

// Arg returns an argument of the program, or its default.
func Arg(n int, otherwise string) string {
	if n < len(os.Args) {
		return os.Args[n]
	}
	return otherwise
}

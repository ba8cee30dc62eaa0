package fencepost_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/clients/go/fencepost"
	"github.com/fencepost/fencepost/clients/go/fenceposttest"
)

// linesOfTheReadme are the lines of Go in the README of the repository, with the address of the test's server.
func linesOfTheReadme(ctx context.Context, address string, save func(context.Context, uint64) error) error {
	client, err := fencepost.New(ctx, address)
	if err != nil {
		return err
	}
	defer client.Close(context.Background())
	return client.Do(ctx, "reports", func(ctx context.Context, lock *fencepost.Lock) error {
		return save(ctx, lock.Token())
	}, fencepost.Wait(30*time.Second))
}

func TestTheLinesOfTheReadmeWorkAsTheyStand(t *testing.T) {
	t.Parallel()
	readme := string(must(os.ReadFile("../../../README.md")))
	_, rest, _ := strings.Cut(readme, "```go\n")
	lines, _, _ := strings.Cut(rest, "```")
	lines = strings.ReplaceAll(lines, `"127.0.0.1:50051"`, "address")
	indented := "\t" + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\n\t") + "\n"
	if own := string(must(os.ReadFile("readme_test.go"))); !strings.Contains(own, indented) {
		t.Fatal("the README has other lines:\n" + indented)
	}
	saved := uint64(0)
	save := func(_ context.Context, token uint64) error {
		saved = token
		return nil
	}
	if err := linesOfTheReadme(background, fenceposttest.Start(t).Addr, save); err != nil || saved == 0 {
		t.Fatal(err, saved)
	}
}

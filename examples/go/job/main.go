// A job under a lock: job [DATABASE] [STEPS] [TTL].
//
// Each step raises the fencing token before it reads, in the transaction of its work, which a newer holder's token refuses.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"strconv"
	"time"

	_ "modernc.org/sqlite"

	"example.com/programs"
	"github.com/fencepost/fencepost/clients/go/fence"
	"github.com/fencepost/fencepost/clients/go/fencepost"
)

const (
	table = `CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, steps INTEGER NOT NULL, token INTEGER NOT NULL)`
	write = `INSERT OR REPLACE INTO reports VALUES ('daily', ?, ?)`
)

func main() {
	log.SetFlags(0)
	if err := run(programs.Arg(1, "reports.db"), programs.Arg(2, "5"), programs.Arg(3, "10s")); err != nil {
		log.Fatal(err)
	}
	fmt.Println("done")
}

func run(path, stepsText, ttlText string) error {
	steps, err := strconv.Atoi(stepsText)
	if err != nil {
		return err
	}
	ttl, err := time.ParseDuration(ttlText)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(fence.SQLite.Create + ";" + table); err != nil {
		return err
	}
	client, err := programs.Connect(context.Background(), "job")
	if err != nil {
		return err
	}
	defer client.Close(context.Background())
	return client.Do(context.Background(), "reports", func(ctx context.Context, lock *fencepost.Lock) error {
		token := lock.Token()
		fmt.Println("locked with token", token)
		for step := 1; step <= steps; step++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			time.Sleep(200 * time.Millisecond) // The work of this step.
			// The lease may have ended meanwhile: it is the database that knows, by the token.
			err := fence.Transaction(context.Background(), db, fence.SQLite, fence.Token("reports", token), func(tx *sql.Tx) error {
				var steps int
				if err := tx.QueryRow("SELECT coalesce(max(steps), 0) FROM reports").Scan(&steps); err != nil {
					return err
				}
				_, err := tx.Exec(write, steps+1, token)
				return err
			})
			if errors.Is(err, fence.ErrStaleToken) {
				return fmt.Errorf("refused: %w", err)
			} else if err != nil {
				return err
			}
			fmt.Println("wrote step", step)
		}
		return nil
	}, fencepost.Wait(time.Minute), fencepost.TTL(ttl))
}

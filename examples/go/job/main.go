// A job under a lock: job [DATABASE] [STEPS] [TTL].
//
// Each write carries the fencing token, and the table refuses a token below the highest that it has seen.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strconv"
	"time"

	_ "modernc.org/sqlite"

	"example.com/programs"
	"github.com/fencepost/fencepost/clients/go/fencepost"
)

const (
	table = `CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, step INTEGER NOT NULL, token INTEGER NOT NULL)`
	write = `INSERT INTO reports VALUES ('daily', ?, ?)
		ON CONFLICT (name) DO UPDATE SET step = excluded.step, token = excluded.token WHERE excluded.token >= token`
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
	if _, err := db.Exec(table); err != nil {
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
			result, err := db.Exec(write, step, token)
			if err != nil {
				return err
			}
			if rows, err := result.RowsAffected(); err != nil || rows == 0 {
				return fmt.Errorf("refused: a newer token than %d has written (%v)", token, err)
			}
			fmt.Println("wrote step", step)
		}
		return nil
	}, fencepost.Wait(time.Minute), fencepost.TTL(ttl))
}

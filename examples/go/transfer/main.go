// Transfers between accounts, each under the locks of both: transfer [DATABASE] [TRANSFERS].
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"math/rand/v2"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	_ "modernc.org/sqlite"

	"example.com/programs"
	"github.com/fencepost/fencepost/clients/go/fencepost"
)

const (
	table = `CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL);
		INSERT OR IGNORE INTO accounts VALUES ('alice', 100, 0), ('bob', 100, 0), ('carol', 100, 0)`
	add = `UPDATE accounts SET balance = balance + ?, token = ? WHERE name = ? AND token <= ?`
)

func main() {
	log.SetFlags(0)
	if err := run(programs.Arg(1, "accounts.db"), programs.Arg(2, "20")); err != nil {
		log.Fatal(err)
	}
}

func run(path, transfersText string) error {
	transfers, err := strconv.Atoi(transfersText)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(30000)&_txlock=immediate")
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(table); err != nil {
		return err
	}
	client, err := programs.Connect(context.Background(), "transfer")
	if err != nil {
		return err
	}
	defer client.Close(context.Background())
	group, ctx := errgroup.WithContext(context.Background())
	group.SetLimit(4)
	for range transfers {
		group.Go(func() error { return transfer(ctx, client, db) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var total int
	if err := db.QueryRow("SELECT sum(balance) FROM accounts").Scan(&total); err != nil {
		return err
	}
	fmt.Println("the total is", total)
	return nil
}

func transfer(ctx context.Context, client *fencepost.Client, db *sql.DB) error {
	accounts := []string{"alice", "bob", "carol"}
	out := rand.IntN(len(accounts)) // This account is not touched.
	accounts = append(accounts[:out], accounts[out+1:]...)
	amount := []int{-10, 10}[rand.IntN(2)]
	names := []string{"account/" + accounts[0], "account/" + accounts[1]}
	return client.DoAll(ctx, names, func(ctx context.Context, locks []*fencepost.Lock) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := change(ctx, tx, accounts[0], amount, locks[0].Token()); err != nil {
			return err
		}
		if err := change(ctx, tx, accounts[1], -amount, locks[1].Token()); err != nil {
			return err
		}
		fmt.Printf("%d to %s, %d to %s\n", amount, accounts[0], -amount, accounts[1])
		return tx.Commit()
	}, fencepost.Wait(time.Minute), fencepost.TTL(8*time.Second))
}

// change adds to a balance; the row compares the token of the account's own lock.
func change(ctx context.Context, tx *sql.Tx, name string, amount int, token uint64) error {
	result, err := tx.ExecContext(ctx, add, amount, token, name, token)
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 0 {
		return fmt.Errorf("refused: a newer token than %d has written %s (%v)", token, name, err)
	}
	return nil
}

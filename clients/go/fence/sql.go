package fence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math"
)

// Dialect has the statements of one kind of database.
type Dialect struct {
	// Create makes the table, in the database of the work.
	Create string
	// Raise is the first statement of each transaction. Its values are the lock's name and the token.
	Raise string
	// Highest selects the highest token of a name, where the number of rows that Raise changed does not tell; else empty.
	Highest string
	// Before prepares a connection for a transaction, and After undoes it when that has ended; else empty.
	Before, After string
}

const update = "ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fencing_tokens.token <= excluded.token"

var (
	// PostgreSQL is for pgx and pq.
	PostgreSQL = Dialect{
		Create: "CREATE TABLE IF NOT EXISTS fencing_tokens (name text PRIMARY KEY, token bigint NOT NULL)",
		Raise:  "INSERT INTO fencing_tokens (name, token) VALUES ($1, $2)\n" + update,
	}
	// SQLite is for modernc.org/sqlite and mattn/go-sqlite3. Set a busy timeout, which bounds the wait for another
	// transaction. As the first statement, Raise makes the transaction what BEGIN IMMEDIATE makes it: nobody writes beside it.
	SQLite = Dialect{
		Create: "CREATE TABLE IF NOT EXISTS fencing_tokens (name TEXT PRIMARY KEY, token INTEGER NOT NULL)",
		Raise:  "INSERT INTO fencing_tokens (name, token) VALUES (?, ?)\n" + update,
	}
	// MySQL is for go-sql-driver/mysql, and MariaDB. Names are compared byte for byte. The number of changed rows is the
	// same for an equal and for a lower token, so the row is read behind, with its lock. What follows a deadlock, which rolls
	// back the raise too, must not be committed statement by statement.
	MySQL = Dialect{
		Create: `CREATE TABLE IF NOT EXISTS fencing_tokens (
	name varbinary(600) PRIMARY KEY, token bigint NOT NULL
) ENGINE = InnoDB`,
		Raise: `INSERT INTO fencing_tokens (name, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))`,
		Highest: "SELECT token FROM fencing_tokens WHERE name = ? FOR UPDATE",
		Before:  "SET @fencepost_autocommit = @@autocommit, autocommit = 0",
		After:   "SET autocommit = @fencepost_autocommit",
	}
)

// Raise raises the token of a lock in the row of its name. It must be the first statement of tx, because what tx has read
// before was read before the raise. tx then has the row to itself until it ends, so those of one lock run one after the
// other. After an error, such as [ErrStaleToken] or one of a later statement, tx must be rolled back, because after a deadlock
// MySQL has rolled back the raise too.
func Raise(ctx context.Context, tx *sql.Tx, dialect Dialect, lock Holder) error {
	token, err := check(lock)
	if err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, dialect.Raise, lock.Name(), int64(token))
	if err != nil {
		return err
	}
	if dialect.Highest != "" {
		var highest uint64
		if err := tx.QueryRowContext(ctx, dialect.Highest, lock.Name()).Scan(&highest); err != nil {
			return err
		}
		return refuse(lock, token, highest)
	}
	changed, err := result.RowsAffected()
	if err == nil && changed == 0 {
		return refuse(lock, token, math.MaxUint64)
	}
	return err
}

// Transaction raises the token of a lock, calls work, and commits both. It rolls back if work returns an error or panics,
// or if ctx ends. Let errors of statements end work: if the database has rolled back the raise, as MySQL does after a
// deadlock, the rest of work is rolled back too. Returns [ErrStaleToken] if a newer holder has raised the row, and the error
// of work unchanged.
func Transaction(ctx context.Context, db *sql.DB, dialect Dialect, lock Holder, work func(tx *sql.Tx) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if dialect.Before != "" {
		if _, err := conn.ExecContext(ctx, dialect.Before); err != nil {
			return err
		}
	}
	tx, err := conn.BeginTx(ctx, nil)
	hasEnded := err != nil
	defer func() { restore(ctx, conn, dialect, hasEnded || tx.Rollback() == nil) }()
	if err != nil {
		return err
	}
	if err := raiseAndWork(ctx, tx, dialect, lock, work); err != nil {
		return err
	}
	err = tx.Commit()
	hasEnded = err == nil
	return err
}

func raiseAndWork(ctx context.Context, tx *sql.Tx, dialect Dialect, lock Holder, work func(tx *sql.Tx) error) error {
	if err := Raise(ctx, tx, dialect, lock); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "SAVEPOINT fencepost"); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	// A savepoint lasts as long as the transaction, which a deadlock or work may have ended.
	if _, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT fencepost"); err != nil {
		return fmt.Errorf("fence: the transaction of the raise has failed or ended before its commit, and was rolled back: %w", err)
	}
	return nil
}

// restore gives a connection back, or closes it if its transaction may go on, which After would commit.
func restore(ctx context.Context, conn *sql.Conn, dialect Dialect, hasEnded bool) {
	if dialect.After == "" {
		return
	}
	if hasEnded {
		_, err := conn.ExecContext(context.WithoutCancel(ctx), dialect.After)
		hasEnded = err == nil
	}
	if !hasEnded {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

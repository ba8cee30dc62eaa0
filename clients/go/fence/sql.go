package fence

import (
	"context"
	"database/sql"
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
	// same for an equal and for a lower token, so the row is read behind, with its lock.
	MySQL = Dialect{
		Create: `CREATE TABLE IF NOT EXISTS fencing_tokens (
	name varbinary(600) PRIMARY KEY, token bigint NOT NULL
) ENGINE = InnoDB`,
		Raise: `INSERT INTO fencing_tokens (name, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))`,
		Highest: "SELECT token FROM fencing_tokens WHERE name = ? FOR UPDATE",
	}
)

// Raise raises the token of a lock in the row of its name. It must be the first statement of tx, because what tx has read
// before was read before the raise. tx then has the row to itself until it ends, so those of one lock run one after the
// other. After an error, such as [ErrStaleToken], tx must be rolled back.
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
// or if ctx ends. Let errors of statements end work, because after a deadlock MySQL has rolled back the raise too. Returns
// [ErrStaleToken] if a newer holder has raised the row, and the error of work unchanged.
func Transaction(ctx context.Context, db *sql.DB, dialect Dialect, lock Holder, work func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // After the commit, it does nothing.
	if err := Raise(ctx, tx, dialect, lock); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

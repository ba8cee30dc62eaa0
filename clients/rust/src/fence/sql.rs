//! A table with a row for each lock, in the database of the work.
//!
//! [`Dialect::raise`] is the first statement of each transaction. The transaction then has the row to itself until it ends,
//! so those of one lock run one after the other. With a [`StaleToken`](super::StaleToken) it must be rolled back. Let errors of
//! statements end the transaction, because after a deadlock MySQL has rolled back the raise too. With tokio-postgres:
//!
//! ```ignore
//! let transaction = database.transaction().await?;
//! let changed = transaction.execute(POSTGRESQL.raise, &[&token.lock(), &token.number()]).await?;
//! token.raised(changed)?;
//! ```

/// The statements of one kind of database.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// Makes the table, in the database of the work.
    pub create: &'static str,
    /// Begins a transaction in which the raise is the first statement.
    pub begin: &'static str,
    /// Raises the token. Its values are the lock's name and the token's number.
    pub raise: &'static str,
    /// Selects the highest token of a name, where the number of changed rows does not tell: give it to
    /// [`FencingToken::compare`](super::FencingToken::compare) behind each raise. Without it, give the number of changed rows
    /// to [`FencingToken::raised`](super::FencingToken::raised).
    pub highest: Option<&'static str>,
}

/// PostgreSQL, for tokio-postgres and sqlx.
pub const POSTGRESQL: Dialect = Dialect {
    create: "CREATE TABLE IF NOT EXISTS fencing_tokens (name text PRIMARY KEY, token bigint NOT NULL)",
    begin: "BEGIN",
    raise: "INSERT INTO fencing_tokens (name, token) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fencing_tokens.token <= excluded.token",
    highest: None,
};

/// SQLite, for rusqlite (`TransactionBehavior::Immediate`) and sqlx. Nobody writes between the raise and the work. Set a busy
/// timeout, which bounds the wait for another transaction.
pub const SQLITE: Dialect = Dialect {
    create: "CREATE TABLE IF NOT EXISTS fencing_tokens (name TEXT PRIMARY KEY, token INTEGER NOT NULL)",
    begin: "BEGIN IMMEDIATE",
    raise: "INSERT INTO fencing_tokens (name, token) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fencing_tokens.token <= excluded.token",
    highest: None,
};

/// MySQL and MariaDB, for mysql, mysql_async and sqlx. Names are compared byte for byte: give each as its bytes. The number of changed rows is the same
/// for an equal and for a lower token, so the row is read behind, with its lock.
pub const MYSQL: Dialect = Dialect {
    create: "CREATE TABLE IF NOT EXISTS fencing_tokens (name varbinary(600) PRIMARY KEY, token bigint NOT NULL) \
             ENGINE = InnoDB",
    begin: "START TRANSACTION",
    raise: "INSERT INTO fencing_tokens (name, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))",
    highest: Some("SELECT token FROM fencing_tokens WHERE name = ? FOR UPDATE"),
};

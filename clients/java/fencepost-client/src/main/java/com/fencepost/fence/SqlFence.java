package com.fencepost.fence;

import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Locale;

/** A table with a row for each lock, in the database of the work: PostgreSQL, MySQL, MariaDB or SQLite. */
public enum SqlFence {
    /** PostgreSQL. */
    POSTGRESQL(
            "CREATE TABLE IF NOT EXISTS fencing_tokens (name text PRIMARY KEY, token bigint NOT NULL)", SqlFence.UPSERT, null),
    /** SQLite. As the first statement, the raise makes the transaction what BEGIN IMMEDIATE makes it: nobody writes beside it. */
    SQLITE(
            "CREATE TABLE IF NOT EXISTS fencing_tokens (name TEXT PRIMARY KEY, token INTEGER NOT NULL)", SqlFence.UPSERT, null),
    /**
     * MySQL and MariaDB. Names are compared byte for byte. The number of changed rows is the same for an equal and for a lower
     * token, so the row is read behind, with its lock.
     */
    MYSQL(
            """
            CREATE TABLE IF NOT EXISTS fencing_tokens (
                name varbinary(600) PRIMARY KEY, token bigint NOT NULL
            ) ENGINE = InnoDB""",
            """
            INSERT INTO fencing_tokens (name, token) VALUES (?, ?)
            ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))""",
            "SELECT token FROM fencing_tokens WHERE name = ? FOR UPDATE");

    private static final String UPSERT =
            """
            INSERT INTO fencing_tokens (name, token) VALUES (?, ?)
            ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fencing_tokens.token <= excluded.token""";

    final String create;
    final String raise;
    final String highest;

    SqlFence(String create, String raise, String highest) {
        this.create = create;
        this.raise = raise;
        this.highest = highest;
    }

    /** {@return the statement that makes the table} */
    public String create() {
        return create;
    }

    /**
     * Raises the token in the row of its lock. It must be the first statement of its transaction, because what was read before
     * was read before the raise. The transaction then has the row to itself until it ends, so those of one lock run one after
     * the other. Roll it back after an error of a later statement, because after a deadlock MySQL has rolled back the raise too. In a
     * method with {@code @Transactional} of Spring, the connection is that of {@code DataSourceUtils}.
     *
     * @param connection in a transaction, without auto-commit
     * @param token of the lock
     * @throws StaleTokenException if a newer holder has raised the row: the transaction must be rolled back
     * @throws IllegalStateException if the connection commits each statement
     * @throws SQLException of the database, or because it is none of those above
     */
    public static void raise(Connection connection, FencingToken token) throws SQLException {
        if (connection.getAutoCommit()) {
            throw new IllegalStateException("the connection commits each statement: the raise would not commit with the work");
        }
        SqlFence fence = of(connection);
        try (PreparedStatement raise = connection.prepareStatement(fence.raise)) {
            fence.setName(raise, token);
            raise.setLong(2, token.number());
            int changed = raise.executeUpdate();
            if (fence.highest == null && changed == 0) {
                throw new StaleTokenException(token);
            }
        }
        if (fence.highest != null) {
            try (PreparedStatement highest = connection.prepareStatement(fence.highest)) {
                fence.setName(highest, token);
                var row = highest.executeQuery();
                token.compare(row.next() ? row.getLong(1) : Long.MAX_VALUE);
            }
        }
    }

    /**
     * Raises a token, does the work, and commits both. Rolls back if the work throws. Transactions of one connection run one after
     * the other. Let errors of statements end the work: if the database has rolled back the raise, as MySQL does after a deadlock, the
     * rest of the work is rolled back too.
     *
     * @param connection with auto-commit, which it has again afterwards: without, it may have read before the raise
     * @param token of the lock
     * @param work gets the connection, and leaves the commit to this method
     * @param <R> what the work returns
     * @param <E> what the work throws
     * @return what the work returned
     * @throws StaleTokenException if a newer holder has raised the row
     * @throws IllegalStateException if the connection has no auto-commit
     * @throws SQLException of the database, or because the transaction ended before its commit
     * @throws E of the work
     */
    public static <R, E extends Exception> R transaction(Connection connection, FencingToken token, Work<? super Connection, R, E> work)
            throws SQLException, E {
        // Drivers let threads share a connection, whose statements would run in one transaction.
        synchronized (connection) {
            if (!connection.getAutoCommit()) {
                throw new IllegalStateException(
                        "the connection may have a transaction already: what it has read was read before the raise");
            }
            R result;
            connection.setAutoCommit(false);
            try {
                raise(connection, token);
                execute(connection, "SAVEPOINT fencepost");
                result = work.run(connection);
                requireTheRaise(connection);
                connection.commit();
            } catch (Throwable failure) {
                try {
                    connection.rollback();
                    // Without a rollback, this would commit.
                    connection.setAutoCommit(true);
                } catch (SQLException broken) {
                    failure.addSuppressed(broken);
                }
                throw failure;
            }
            connection.setAutoCommit(true);
            return result;
        }
    }

    /** As bytes in MySQL, where the character set of the connection would change its text. */
    private void setName(PreparedStatement statement, FencingToken token) throws SQLException {
        if (this == MYSQL) {
            statement.setBytes(1, token.lock().getBytes(StandardCharsets.UTF_8));
        } else {
            statement.setString(1, token.lock());
        }
    }

    /** A savepoint lasts as long as the transaction, which a deadlock or the work may have ended. */
    private static void requireTheRaise(Connection connection) throws SQLException {
        try {
            execute(connection, "RELEASE SAVEPOINT fencepost");
        } catch (SQLException failure) {
            throw new SQLException(
                    "the transaction of the raise has failed or ended before its commit: it was rolled back", failure.getSQLState(), failure);
        }
    }

    private static void execute(Connection connection, String sql) throws SQLException {
        try (var statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private static SqlFence of(Connection connection) throws SQLException {
        String product = connection.getMetaData().getDatabaseProductName();
        return switch (product.toLowerCase(Locale.ROOT)) {
            case "postgresql" -> POSTGRESQL;
            case "mysql", "mariadb" -> MYSQL;
            case "sqlite" -> SQLITE;
            default -> throw new SQLException("a fence is known for PostgreSQL, MySQL, MariaDB and SQLite, not for " + product);
        };
    }
}

package com.fencepost.fence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.HeldLock;
import com.fencepost.client.LeaseLostException;
import com.fencepost.testing.FencepostServer;
import java.io.IOException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.AfterParameterizedClassInvocation;
import org.junit.jupiter.params.BeforeParameterizedClassInvocation;
import org.junit.jupiter.params.ParameterizedClass;
import org.junit.jupiter.params.provider.EnumSource;

/** In a database with an empty fence and an account of 5. */
@ParameterizedClass
@EnumSource(SqlFence.class)
class SqlFenceTest {
    private static Servers servers;
    private static String url;
    private final SqlFence dialect;

    SqlFenceTest(SqlFence dialect) {
        this.dialect = dialect;
    }

    @BeforeParameterizedClassInvocation
    static void start(SqlFence dialect) throws Exception {
        servers = new Servers();
        url = switch (dialect) {
            case POSTGRESQL -> servers.postgres();
            case MYSQL -> servers.mariadb();
            case SQLITE -> servers.sqlite();
        };
    }

    @AfterParameterizedClassInvocation
    static void stop() throws Exception {
        servers.close();
    }

    /** Empties the database. */
    private Connection begin() throws SQLException {
        Connection connection = open();
        try (var statement = connection.createStatement()) {
            for (String table : List.of("fencing_tokens", "account")) {
                statement.execute("DROP TABLE IF EXISTS " + table);
            }
            statement.execute(dialect.create());
            statement.execute("CREATE TABLE account (total integer NOT NULL)");
            statement.execute("INSERT INTO account VALUES (5)");
        }
        return connection;
    }

    private static Connection open() throws SQLException {
        return DriverManager.getConnection(url);
    }

    static int total(Connection connection) throws SQLException {
        try (var statement = connection.createStatement()) {
            var row = statement.executeQuery("SELECT total FROM account");
            row.next();
            return row.getInt(1);
        }
    }

    static Void set(Connection connection, int total) throws SQLException {
        try (var statement = connection.createStatement()) {
            statement.executeUpdate("UPDATE account SET total = " + total);
        }
        return null;
    }

    private static Void add(Connection connection) throws SQLException {
        return set(connection, total(connection) + 1);
    }

    private static FencingToken token(long number) {
        return new FencingToken("a", number);
    }

    @Test
    void aPausedHolderThatHasReadWritesNothingAfterANewerOne() throws Exception {
        try (Connection paused = begin(); Connection newer = open()) {
            int read = SqlFence.transaction(paused, token(33), SqlFenceTest::total);
            SqlFence.transaction(newer, token(34), SqlFenceTest::add);
            assertThrows(StaleTokenException.class, () -> SqlFence.transaction(paused, token(33), late -> set(late, read + 1)));
            assertEquals(6, total(paused));
            SqlFence.transaction(newer, token(34), SqlFenceTest::add);
            assertEquals(7, total(paused));
        }
    }

    @Test
    void transactionsOfOneLockRunOneAfterTheOther() throws Exception {
        var order = new ArrayList<String>();
        try (Connection older = begin(); Connection newer = open()) {
            CompletableFuture<Void> later = SqlFence.transaction(older, token(33), connection -> {
                var waiting = CompletableFuture.supplyAsync(() -> {
                    try {
                        return SqlFence.transaction(newer, token(34), other -> {
                            order.add("newer");
                            return set(other, total(other) * 10);
                        });
                    } catch (SQLException failure) {
                        throw new IllegalStateException(failure);
                    }
                });
                assertThrows(TimeoutException.class, () -> waiting.get(300, TimeUnit.MILLISECONDS));
                order.add("older");
                set(connection, 2);
                return waiting;
            });
            later.get(30, TimeUnit.SECONDS);
            assertEquals(List.of("older", "newer"), order);
            assertEquals(20, total(older));
        }
    }

    @Test
    void twoRequestsAtOnceOverOneConnectionRunOneAfterTheOther() throws Exception {
        try (Connection connection = begin()) {
            CompletableFuture<Void> later = SqlFence.transaction(connection, token(33), one -> {
                var waiting = CompletableFuture.supplyAsync(() -> {
                    try {
                        return SqlFence.transaction(connection, token(34), SqlFenceTest::add);
                    } catch (SQLException failure) {
                        throw new IllegalStateException(failure);
                    }
                });
                assertThrows(TimeoutException.class, () -> waiting.get(300, TimeUnit.MILLISECONDS));
                set(one, 7);
                return waiting;
            });
            later.get(30, TimeUnit.SECONDS);
            assertEquals(8, total(connection));
        }
    }

    @Test
    void aTransactionThatItsWorkEndsCommitsNothingAfterwards() throws Exception {
        try (Connection connection = begin()) {
            var ended = assertThrows(SQLException.class, () -> SqlFence.transaction(connection, token(33), one -> {
                one.rollback();
                return set(one, 100);
            }));
            assertTrue(ended.getMessage().contains("has failed or ended before its commit"), ended.getMessage());
            assertEquals(5, SqlFence.transaction(connection, token(1), SqlFenceTest::total));
        }
    }

    @Test
    void afterADeadlockThatTheWorkHidesNothingIsCommitted() throws Exception {
        assumeTrue(dialect == SqlFence.MYSQL, "the others roll nothing back, or end the transaction");
        try (Connection connection = begin(); Connection heavier = open(); var statement = heavier.createStatement()) {
            heavier.setAutoCommit(false);
            // MariaDB rolls the lighter of two transactions back.
            statement.execute("INSERT INTO account SELECT 5 FROM seq_1_to_100");
            set(heavier, 5);
            var other = new ArrayList<CompletableFuture<Void>>();
            assertThrows(SQLException.class, () -> SqlFence.transaction(connection, token(33), one -> {
                other.add(CompletableFuture.runAsync(() -> {
                    try {
                        statement.executeQuery("SELECT token FROM fencing_tokens WHERE name = 'a' FOR UPDATE");
                        heavier.rollback();
                    } catch (SQLException failure) {
                        throw new IllegalStateException(failure);
                    }
                }));
                assertEquals("40001", assertThrows(SQLException.class, () -> set(one, 6)).getSQLState());
                return set(one, 100);
            }));
            other.get(0).get(30, TimeUnit.SECONDS);
            assertEquals(5, total(connection));
        }
    }

    @Test
    void workThatThrowsTakesTheRaiseBack() throws Exception {
        try (Connection connection = begin()) {
            var failure = new IOException("failure");
            assertSame(failure, assertThrows(IOException.class, () -> SqlFence.transaction(connection, token(50), one -> {
                set(one, 0);
                throw failure;
            })));
            assertTrue(connection.getAutoCommit());
            assertEquals(5, SqlFence.transaction(connection, token(49), SqlFenceTest::total));
        }
    }

    @Test
    void namesAreComparedByteForByte() throws Exception {
        try (Connection connection = begin()) {
            long number = 100;
            for (String name : List.of("a", "A", "a ", "a\u00e9", "x".repeat(512))) {
                SqlFence.transaction(connection, new FencingToken(name, number--), one -> null);
            }
        }
    }

    @Test
    void aTransactionThatMayHaveReadAndARaiseWithoutOneAreRefused() throws Exception {
        try (Connection connection = begin()) {
            assertThrows(IllegalStateException.class, () -> SqlFence.raise(connection, token(33)));
            connection.setAutoCommit(false);
            assertThrows(IllegalStateException.class, () -> SqlFence.transaction(connection, token(33), one -> null));
            SqlFence.raise(connection, token(33));
            connection.rollback();
        }
    }

    @Test
    void aLostLockRaisesNothing() throws Exception {
        try (var server = FencepostServer.start();
                var client = FencepostClient.builder().address(server.address()).build();
                Connection connection = begin()) {
            HeldLock lock = client.lock("a").acquire();
            SqlFence.transaction(connection, FencingToken.of(lock), SqlFenceTest::add);
            assertEquals(Long.toString(lock.token()), FencingToken.of(lock).header());
            lock.close();
            assertThrows(LeaseLostException.class, () -> FencingToken.of(lock));
        }
        for (long bad : new long[] {0, -1, 1L << 53}) {
            assertThrows(IllegalArgumentException.class, () -> token(bad));
        }
    }
}

package fencepost.example;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.HeldLock;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;

/** Transfers between accounts, each under the locks of both: Transfer [DATABASE] [TRANSFERS]. */
public final class Transfer {
    private static final List<List<String>> PAIRS =
            List.of(List.of("alice", "bob"), List.of("alice", "carol"), List.of("bob", "carol"));
    private static final String TABLE =
            "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL)";
    private static final String ACCOUNTS =
            "INSERT OR IGNORE INTO accounts VALUES ('alice', 100, 0), ('bob', 100, 0), ('carol', 100, 0)";
    private static final String ADD =
            "UPDATE accounts SET balance = balance + ?, token = ? WHERE name = ? AND token <= ?";

    public static void main(String[] args) throws Exception {
        String path = "jdbc:sqlite:" + (args.length > 0 ? args[0] : "accounts.db") + "?busy_timeout=30000&transaction_mode=IMMEDIATE";
        int transfers = args.length > 1 ? Integer.parseInt(args[1]) : 20;
        FencepostClient client = FencepostClient.builder().build();
        try (Connection database = DriverManager.getConnection(path)) {
            database.createStatement().execute(TABLE);
            database.createStatement().execute(ACCOUNTS);
        }
        ExecutorService pool = Executors.newFixedThreadPool(4);
        Callable<Void> transfer = () -> transfer(client, path);
        try {
            for (Future<Void> done : pool.invokeAll(Collections.nCopies(transfers, transfer))) {
                done.get();
            }
        } finally {
            pool.shutdown();
            client.close();
        }
        try (Connection database = DriverManager.getConnection(path)) {
            var total = database.createStatement().executeQuery("SELECT sum(balance) FROM accounts");
            System.out.println("the total is " + total.getInt(1));
        }
    }

    private static Void transfer(FencepostClient client, String path) throws SQLException, InterruptedException {
        var random = ThreadLocalRandom.current();
        List<String> pair = PAIRS.get(random.nextInt(PAIRS.size()));
        int amount = random.nextBoolean() ? 10 : -10;
        // Both locks or none, without deadlock with others.
        try (var both = client.lockAll(pair.stream().map("account/"::concat).toList())
                        .ttl(Duration.ofSeconds(8)).waitFor(Duration.ofMinutes(1)).acquire();
                Connection database = DriverManager.getConnection(path)) {
            database.setAutoCommit(false);
            HeldLock first = both.locks().get(0);
            HeldLock second = both.locks().get(1);
            both.check();
            // Both balances change or neither; each row compares the token of its own lock.
            add(database, pair.get(0), amount, first.token());
            add(database, pair.get(1), -amount, second.token());
            database.commit();
        }
        System.out.printf("%d to %s, %d to %s%n", amount, pair.get(0), -amount, pair.get(1));
        return null;
    }

    private static void add(Connection database, String name, int amount, long token) throws SQLException {
        try (var statement = database.prepareStatement(ADD)) {
            statement.setInt(1, amount);
            statement.setLong(2, token);
            statement.setString(3, name);
            statement.setLong(4, token);
            if (statement.executeUpdate() == 0) {
                throw new IllegalStateException("refused: a newer token than " + token + " has written " + name);
            }
        }
    }
}

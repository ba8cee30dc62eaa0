package fencepost.example;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.HeldLock;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;

/**
 * A job under a lock: Job [DATABASE] [STEPS] [TTL_S].
 *
 * <p>Each write carries the fencing token, and the table refuses a token below the highest that it has seen.
 */
public final class Job {
    private static final String TABLE =
            "CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, step INTEGER NOT NULL, token INTEGER NOT NULL)";
    private static final String WRITE =
            """
            INSERT INTO reports VALUES ('daily', ?, ?)
            ON CONFLICT (name) DO UPDATE SET step = excluded.step, token = excluded.token WHERE excluded.token >= token""";

    public static void main(String[] args) throws Exception {
        String path = args.length > 0 ? args[0] : "reports.db";
        int steps = args.length > 1 ? Integer.parseInt(args[1]) : 5;
        int ttl = args.length > 2 ? Integer.parseInt(args[2]) : 10;
        try (FencepostClient client = FencepostClient.builder().build();
                Connection database = DriverManager.getConnection("jdbc:sqlite:" + path)) {
            database.createStatement().execute(TABLE);
            try (HeldLock lock = client.lock("reports")
                    .ttl(Duration.ofSeconds(ttl)).waitFor(Duration.ofMinutes(1)).acquire()) {
                System.out.println("locked with token " + lock.token());
                for (int step = 1; step <= steps; step++) {
                    lock.check();
                    Thread.sleep(200); // The work of this step.
                    write(database, step, lock.token());
                    System.out.println("wrote step " + step);
                }
            }
        }
        System.out.println("done");
    }

    private static void write(Connection database, int step, long token) throws SQLException {
        try (var statement = database.prepareStatement(WRITE)) {
            statement.setInt(1, step);
            statement.setLong(2, token);
            if (statement.executeUpdate() == 0) {
                throw new IllegalStateException("refused: a newer token than " + token + " has written");
            }
        }
    }
}

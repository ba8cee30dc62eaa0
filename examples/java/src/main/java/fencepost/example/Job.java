package fencepost.example;

import com.fencepost.client.FencepostClient;
import com.fencepost.client.HeldLock;
import com.fencepost.fence.FencingToken;
import com.fencepost.fence.SqlFence;
import com.fencepost.fence.StaleTokenException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;

/**
 * A job under a lock: Job [DATABASE] [STEPS] [TTL_S].
 *
 * <p>Each step raises the fencing token before it reads, in the transaction of its work, which a newer holder's token refuses.
 */
public final class Job {
    private static final String TABLE =
            "CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, steps INTEGER NOT NULL, token INTEGER NOT NULL)";

    public static void main(String[] args) throws Exception {
        String path = args.length > 0 ? args[0] : "reports.db";
        int steps = args.length > 1 ? Integer.parseInt(args[1]) : 5;
        int ttl = args.length > 2 ? Integer.parseInt(args[2]) : 10;
        try (FencepostClient client = FencepostClient.builder().build();
                Connection database = DriverManager.getConnection("jdbc:sqlite:" + path)) {
            database.createStatement().execute(SqlFence.SQLITE.create());
            database.createStatement().execute(TABLE);
            try (HeldLock lock = client.lock("reports")
                    .ttl(Duration.ofSeconds(ttl)).waitFor(Duration.ofMinutes(1)).acquire()) {
                System.out.println("locked with token " + lock.token());
                for (int step = 1; step <= steps; step++) {
                    FencingToken token = FencingToken.of(lock);
                    Thread.sleep(200); // The work of this step.
                    SqlFence.transaction(database, token, work -> write(work, token.number()));
                    System.out.println("wrote step " + step);
                }
            }
        } catch (StaleTokenException stale) {
            System.out.println("refused: " + stale.getMessage());
            System.exit(1);
        }
        System.out.println("done");
    }

    private static int write(Connection database, long token) throws SQLException {
        try (var read = database.createStatement();
                var write = database.prepareStatement("INSERT OR REPLACE INTO reports VALUES ('daily', ?, ?)")) {
            var row = read.executeQuery("SELECT coalesce(max(steps), 0) FROM reports");
            row.next();
            write.setInt(1, row.getInt(1) + 1);
            write.setLong(2, token);
            return write.executeUpdate();
        }
    }
}

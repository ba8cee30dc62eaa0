// A job under a lock: job [DATABASE] [STEPS] [TTL_S].
//
// Each step raises the fencing token before it reads, in the transaction of its work, which a newer holder's token refuses.
import Database from "libsql";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, FencepostError } from "fencepost-client";
import * as fence from "fencepost-client/fence";

const TABLE = "CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, steps INTEGER NOT NULL, token INTEGER NOT NULL)";

const [path = "reports.db", steps = "5", ttl = "10"] = process.argv.slice(2);
const database = new Database(path);
database.exec("PRAGMA busy_timeout = 10000");
database.exec(fence.SQLITE.create);
database.exec(TABLE);
const read = database.prepare("SELECT coalesce(max(steps), 0) AS steps FROM reports");
const write = database.prepare("INSERT OR REPLACE INTO reports VALUES ('daily', ?, ?)");

await using client = new Client();
try {
  await client.using("reports", { ttlMs: Number(ttl) * 1000, waitMs: 60_000 }, async (lock) => {
    console.log(`locked with token ${lock.token}`);
    for (let step = 1; step <= Number(steps); step++) {
      const token = lock.check();
      await sleep(200); // The work of this step.
      await fence.transaction(fence.SQLITE, database, { name: "reports", token }, () => {
        const { steps } = read.get() as { steps: number };
        write.run(steps + 1, token);
      });
      console.log(`wrote step ${step}`);
    }
  });
  console.log("done");
} catch (error) {
  if (error instanceof fence.StaleToken) console.log(`refused: ${error.message}`);
  else console.log(error instanceof FencepostError ? `${error.reason}: ${error.message}` : error);
  process.exitCode = 1;
}

// A job under a lock: job [DATABASE] [STEPS] [TTL_S].
//
// Each write carries the fencing token, and the table refuses a token below the highest that it has seen.
import Database from "libsql";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, FencepostError } from "fencepost-client";

const TABLE = "CREATE TABLE IF NOT EXISTS reports (name TEXT PRIMARY KEY, step INTEGER NOT NULL, token INTEGER NOT NULL)";
const WRITE = `INSERT INTO reports VALUES ('daily', ?, ?)
  ON CONFLICT (name) DO UPDATE SET step = excluded.step, token = excluded.token WHERE excluded.token >= token`;

const [path = "reports.db", steps = "5", ttl = "10"] = process.argv.slice(2);
const database = new Database(path);
database.exec("PRAGMA busy_timeout = 10000");
database.exec(TABLE);
const write = database.prepare(WRITE);

await using client = new Client();
try {
  await client.using("reports", { ttlMs: Number(ttl) * 1000, waitMs: 60_000 }, async (lock) => {
    console.log(`locked with token ${lock.token}`);
    for (let step = 1; step <= Number(steps); step++) {
      lock.check();
      await sleep(200); // The work of this step.
      if (write.run(step, lock.token).changes === 0) throw new Error(`refused: a newer token than ${lock.token} has written`);
      console.log(`wrote step ${step}`);
    }
  });
  console.log("done");
} catch (error) {
  console.log(error instanceof FencepostError ? `${error.reason}: ${error.message}` : error);
  process.exitCode = 1;
}

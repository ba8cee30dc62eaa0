// Jobs of which at most five run at a time, on all machines together: at_most_five [JOBS].
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "fencepost-client";

const [jobs = "12"] = process.argv.slice(2);
await using client = new Client();
let running = 0;
let most = 0;

async function run(job: number) {
  await client.using("transcode", { mode: { limit: 5 }, ttlMs: 8_000, waitMs: 60_000 }, async () => {
    most = Math.max(most, ++running);
    await sleep(500); // The work of this job.
    running--;
  });
  console.log(`job ${job} has run`);
}

await Promise.all(Array.from({ length: Number(jobs) }, (_, job) => run(job)));
console.log(`at most ${most} at a time`);

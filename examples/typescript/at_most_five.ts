// Jobs of which at most five run at a time, on all machines together: at_most_five [JOBS].
import { setTimeout as sleep } from "node:timers/promises";
import { Locks, seconds } from "./locks.js";

const [jobs = "12"] = process.argv.slice(2);
const locks = new Locks(process.env.FENCEPOST_ADDR ?? "127.0.0.1:50051", `five-${process.pid}`);
const mode = { semaphore: { permits: 1, limit: 5 } };
let running = 0;
let most = 0;

async function run(job: number) {
  await locks.hold({ name: "transcode", ttl: seconds(8), mode }, async () => {
    most = Math.max(most, ++running);
    await sleep(500); // The work of this job.
    running--;
  }, 60_000);
  console.log(`job ${job} has run`);
}

await Promise.all(Array.from({ length: Number(jobs) }, (_, job) => run(job)));
console.log(`at most ${most} at a time`);
locks.close();
